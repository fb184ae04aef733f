"""Kernels of a program as Triton source."""

from plait_triton_codegen.kernels.render import TritonKernelSource, render_kernel, triton_kernel
from plait_triton_codegen.kernels.tiles import Tile

__all__ = ["Tile", "TritonKernelSource", "render_kernel", "triton_kernel"]
