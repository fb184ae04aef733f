"""Graphs as pictures: Graphviz's DOT, and SVG by a layout of our own."""

from plait_fx_passes.tools.drawing.picture import Picture, draw

__all__ = ["Picture", "draw"]
