"""C++ source of kernels."""

from plait_cpp_codegen.kernels.emit import render_kernel

__all__ = ["render_kernel"]
