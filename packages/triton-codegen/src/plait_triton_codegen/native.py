"""Programs of a GPU without Python between their steps: kernels as machine code, a host in C++."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from plait_cpp_codegen import (
    CompilationError,
    CompilerNotFoundError,
    DeviceGraphs,
    UnsupportedProgramError,
    build_device_host,
    device_of,
)
from plait_scheduler import Program
from plait_triton_codegen.errors import TritonCodegenError
from plait_triton_codegen.kernels import TritonKernelSource
from plait_triton_codegen.machine_code import device_kernels
from plait_triton_codegen.options import TritonOptions
from plait_utils import CacheError, DiskCache, Profile, warn_once

_NO_NATIVE_HOST = (
    *(CompilerNotFoundError, CompilationError, UnsupportedProgramError),
    *(TritonCodegenError, CacheError, ImportError),
)
"""What means that Python launches the kernels."""


def native_host(
    program: Program,
    sources: Mapping[str, TritonKernelSource],
    options: TritonOptions,
    cache: DiskCache,
    timer: Profile,
) -> tuple[Callable[..., tuple[object, ...]], DeviceGraphs | None] | str:
    """What runs a program on a GPU, with its CUDA graphs where these are asked for; or why Python
    must."""

    def in_python(native: Program) -> Callable[..., tuple[object, ...]]:
        from plait_triton_codegen.build import build

        return build(native, options=replace(options, native_host=False), cache=cache)

    try:
        device = device_of(program)
        major, minor = torch.cuda.get_device_capability(device)
        with timer.phase("triton compile"):
            kernels = device_kernels(program, sources, f"cuda:{major}{minor}", cache)
        graphs = DeviceGraphs(device, program.name) if options.cuda_graphs else None
        run = build_device_host(
            program, kernels, in_python, graphs=graphs, cache=cache, profile=timer
        )
        return run, graphs
    except _NO_NATIVE_HOST as error:
        reason = str(error)
        if not isinstance(error, UnsupportedProgramError):
            warn_once("triton", reason, "kernels are launched from Python: %s", reason)
        return reason
