"""Typed settings, logging, phase timers, a crash-safe disk cache, numeric comparison, fake tensors and dump folders for compilers."""

from plait_utils._version import __version__

__all__ = ["__version__"]
