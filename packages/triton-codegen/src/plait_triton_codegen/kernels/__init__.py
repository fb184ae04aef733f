"""Kernels of a program as Triton source."""

from plait_triton_codegen.kernels.chips import COMMON_SHARED_BYTES, Chip
from plait_triton_codegen.kernels.choices import tile_choices
from plait_triton_codegen.kernels.render import host_kernel, render_kernel, triton_kernel
from plait_triton_codegen.kernels.source import HostKernel, TritonKernelSource
from plait_triton_codegen.kernels.tiles import Tile

__all__ = [
    "COMMON_SHARED_BYTES",
    "Chip",
    "HostKernel",
    "Tile",
    "TritonKernelSource",
    "host_kernel",
    "render_kernel",
    "tile_choices",
    "triton_kernel",
]
