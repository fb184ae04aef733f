"""C++ SIMD kernels and host programs for scheduled tensor programs."""

from plait_cpp_codegen._version import __version__

__all__ = ["__version__"]
