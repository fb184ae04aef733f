"""Triton kernels for scheduled tensor programs."""

from plait_triton_codegen._version import __version__

__all__ = ["__version__"]
