"""Compile PyTorch programs to fast C++ and Triton."""

from plait._version import __version__

__all__ = ["__version__"]
