"""Programs of a GPU without Python between their steps: kernels as machine code, a host in C++."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plait_cpp_codegen import (
    CompilationError,
    CompilerNotFoundError,
    DeviceCode,
    DeviceGraphs,
    UnsupportedProgramError,
    build_device_host,
    device_of,
)
from plait_scheduler import Program
from plait_triton_codegen.errors import KernelCompilationError, TritonCodegenError
from plait_triton_codegen.kernels import TritonKernelSource
from plait_triton_codegen.machine_code import (
    device_code,
    device_kernel,
    kernel_jobs,
    machine_codes,
)
from plait_triton_codegen.options import TritonOptions
from plait_triton_codegen.stored_program import store_program, target_of
from plait_triton_codegen.unaligned import UnalignedCalls
from plait_utils import CacheError, DiskCache, Profile, dataclass, warn_once

_NO_NATIVE_HOST = (
    *(CompilerNotFoundError, CompilationError, UnsupportedProgramError),
    *(TritonCodegenError, CacheError, ImportError),
)
"""What means that Python launches the kernels."""


@dataclass(frozen=True, slots=True)
class NativeHost:
    """What runs a program on a GPU."""

    run: Callable[..., tuple[object, ...]]
    library: str | None
    """Its key in the cache, where that alone can run it: see `load_stored`."""
    cache_hit: bool
    unaligned: UnalignedCalls
    """The calls that Python makes."""
    graphs: DeviceGraphs | None = None
    """Its CUDA graphs, where these are asked for."""


def native_host(
    program: Program,
    sources: Mapping[str, TritonKernelSource],
    options: TritonOptions,
    cache: DiskCache,
    timer: Profile,
    in_python: Callable[[Program], Callable[..., tuple[object, ...]]],
) -> NativeHost | str:
    """What runs a program on a GPU, or why Python must; `in_python` builds it for calls that Python
    makes.

    Raises KernelCompilationError for a kernel that Triton does not take.
    """

    unaligned = UnalignedCalls(program.name)

    def counted(native: Program) -> Callable[..., tuple[object, ...]]:
        return unaligned.counted(in_python(native))

    def compiled() -> dict[str, DeviceCode]:
        with timer.phase("triton compile"):
            return {name: device_code(code) for name, code in codes.wait().items()}

    try:
        device = device_of(program)
        jobs = kernel_jobs(program, sources, target_of(device))
        codes = machine_codes(jobs, cache, options.workers)
        kernels = {name: device_kernel(source) for name, source in sources.items()}
        graphs = DeviceGraphs(device, program.name) if options.cuda_graphs else None
        host = build_device_host(
            *(program, kernels, compiled, counted),
            graphs=graphs,
            check_launches=options.check_launches,
            cache=cache,
            profile=timer,
        )
        if host.library is None or graphs is not None:  # what is stored has no graphs
            return NativeHost(host.run, None, host.cache_hit, unaligned, graphs)
        stored = store_program(device, host.library, [codes.keys[name] for name in kernels], cache)
        return NativeHost(host.run, stored, host.cache_hit, unaligned)
    except KernelCompilationError:
        raise  # from Python it would fail as well
    except _NO_NATIVE_HOST as error:
        reason = str(error)
        if not isinstance(error, UnsupportedProgramError):
            warn_once("triton", reason, "kernels are launched from Python: %s", reason)
        return reason
