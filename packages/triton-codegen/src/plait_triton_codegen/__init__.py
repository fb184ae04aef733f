"""Triton kernels for scheduled tensor programs."""

from plait_triton_codegen._version import __version__
from plait_triton_codegen.build import TritonExecutable, build
from plait_triton_codegen.compile import CompiledKernel, compile_kernel
from plait_triton_codegen.errors import (
    KernelCompilationError,
    TritonCodegenError,
    TritonDeviceError,
    TritonVersionError,
    UnsupportedKernelError,
)
from plait_triton_codegen.kernels import (
    Chip,
    Tile,
    TritonKernelSource,
    render_kernel,
    triton_kernel,
)
from plait_triton_codegen.options import TritonOptions
from plait_triton_codegen.stored_program import DEVICE_PROGRAM, load_stored
from plait_triton_codegen.timing import device_clock, device_key, kernel_times
from plait_triton_codegen.tuning import TunedTile
from plait_triton_codegen.unaligned import UnalignedCalls
from plait_triton_codegen.versions import NEWEST, OLDEST, OLDEST_CAPABILITY, TESTED, too_old
from plait_triton_codegen.workers import prepare

__all__ = [
    "DEVICE_PROGRAM",
    "NEWEST",
    "OLDEST",
    "OLDEST_CAPABILITY",
    "TESTED",
    "Chip",
    "CompiledKernel",
    "KernelCompilationError",
    "Tile",
    "TritonCodegenError",
    "TritonDeviceError",
    "TritonExecutable",
    "TritonKernelSource",
    "TritonOptions",
    "TritonVersionError",
    "TunedTile",
    "UnalignedCalls",
    "UnsupportedKernelError",
    "__version__",
    "build",
    "compile_kernel",
    "device_clock",
    "device_key",
    "kernel_times",
    "load_stored",
    "prepare",
    "render_kernel",
    "too_old",
    "triton_kernel",
]
