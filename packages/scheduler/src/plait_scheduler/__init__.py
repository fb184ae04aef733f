"""Fusion, ordering and memory planning of loop IR into executable programs."""

from plait_scheduler._version import __version__

__all__ = ["__version__"]
