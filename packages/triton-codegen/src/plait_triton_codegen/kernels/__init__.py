"""Kernels of a program as Triton source."""

from plait_triton_codegen.kernels.render import host_kernel, render_kernel, triton_kernel
from plait_triton_codegen.kernels.source import HostKernel, TritonKernelSource
from plait_triton_codegen.kernels.tiles import Tile

__all__ = [
    "HostKernel",
    "Tile",
    "TritonKernelSource",
    "host_kernel",
    "render_kernel",
    "triton_kernel",
]
