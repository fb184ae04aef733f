"""Triton kernels for scheduled tensor programs."""

from plait_triton_codegen._version import __version__
from plait_triton_codegen.build import TritonExecutable, build
from plait_triton_codegen.compile import CompiledKernel, compile_kernel
from plait_triton_codegen.errors import (
    TritonCodegenError,
    TritonDeviceError,
    UnsupportedKernelError,
)
from plait_triton_codegen.kernels import Tile, TritonKernelSource, render_kernel, triton_kernel
from plait_triton_codegen.options import TritonOptions

__all__ = [
    "CompiledKernel",
    "Tile",
    "TritonCodegenError",
    "TritonDeviceError",
    "TritonExecutable",
    "TritonKernelSource",
    "TritonOptions",
    "UnsupportedKernelError",
    "__version__",
    "build",
    "compile_kernel",
    "render_kernel",
    "triton_kernel",
]
