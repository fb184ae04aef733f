"""Capture the tensor program of a Python callable by symbolic execution of CPython bytecode, with sound guards."""

from plait_bytecode_tracer._version import __version__

__all__ = ["__version__"]
