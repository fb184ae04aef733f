"""C++ source of kernels."""

from plait_cpp_codegen.kernels.emit import render_kernel
from plait_cpp_codegen.kernels.sizes import RenderedCppKernel, kernel_functions

__all__ = ["RenderedCppKernel", "kernel_functions", "render_kernel"]
