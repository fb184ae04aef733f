"""From a program to something that can be called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
from torch import Tensor

from plait_scheduler import (
    AnyKernel,
    Launch,
    Program,
    RenderedKernel,
    render_python,
    torch_kernel,
    with_chains,
)
from plait_triton_codegen.errors import KernelCompilationError, TritonDeviceError, in_a_line
from plait_triton_codegen.kernels import (
    COMMON_SHARED_BYTES,
    Chip,
    HostKernel,
    Tile,
    TritonKernelSource,
    host_kernel,
)
from plait_triton_codegen.machine_code import aligned_arguments
from plait_triton_codegen.modules import load_module, module_key
from plait_triton_codegen.options import TritonOptions
from plait_triton_codegen.versions import check_capability, check_triton, triton_version, unusable
from plait_utils import DiskCache, Profile, warn_once

if TYPE_CHECKING:
    from plait_cpp_codegen import DeviceGraphs
    from plait_triton_codegen.native import NativeHost
    from plait_triton_codegen.tuning import TunedTile
    from plait_triton_codegen.unaligned import UnalignedCalls

Runner: TypeAlias = Callable[..., tuple[object, ...]]

ON_CPU = "_on_cpu"
"""Behind the names of kernels that run beside a GPU."""


@dataclass(frozen=True, slots=True)
class TritonExecutable:
    """A built program. Calling it with the program's inputs gives a tuple of its outputs.

    CUDA tensors run on their device; CPU tensors in Triton's interpreter. Raises
    IndexError for an index out of bounds, TritonDeviceError for CPU tensors without the
    interpreter.
    """

    source: str
    """The kernels and the host program: one Python module."""
    kernels: tuple[TritonKernelSource, ...]
    """The kernels that Triton runs; others run as torch operations."""
    metadata: Mapping[str, str | int]
    run: Runner = field(repr=False)
    path: Path | None = None
    """Where the module is stored, since Triton reads kernels from their file; None where C++
    launches the kernels."""
    python_reason: str | None = None
    """Why Python launches the kernels of a program for a GPU; None where C++ does."""
    library: str | None = None
    """The program's key in the cache, where that alone can run it: see `load_stored`."""
    cache_hit: bool = False
    """Whether its native host came from the cache."""
    graphs: DeviceGraphs | None = field(default=None, repr=False)
    """Its CUDA graphs, where the option `cuda_graphs` is on and C++ launches the kernels."""
    tuned: tuple[TunedTile, ...] = ()
    """What timing its kernels has found, with the option `autotune`."""
    unaligned: UnalignedCalls | None = field(default=None, repr=False)
    """The calls that Python makes, where C++ launches the kernels of others."""
    torch_kernels: Mapping[str, str] = field(default_factory=dict)
    """The kernels that run as torch operations since Triton does not take them, and why."""

    @property
    def graph_reason(self) -> str | None:
        """Why calls launch kernels one by one; None where they are recorded as CUDA graphs, or will
        be. Calls may find such a reason."""
        if self.graphs is not None:
            return self.graphs.reason
        if self.python_reason is not None:
            return f"Python launches its kernels: {self.python_reason}"
        return "the option cuda_graphs is off"

    @property
    def python_source(self) -> str:
        """The host program, which is in the same module as the kernels."""
        return self.source

    def __call__(self, *tensors: Tensor) -> tuple[object, ...]:
        return self.run(*tensors)


def build(
    program: Program,
    *,
    options: TritonOptions | None = None,
    cache: DiskCache | None = None,
    profile: Profile | None = None,
    rendered: Callable[[str], object] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> TritonExecutable:
    """Render `program` as a module of Triton kernels and load it; `rendered` is called with its
    source before any of it is compiled. `sizes` are the values at hand of its open sizes, by name,
    at which `options.autotune` times.

    On a GPU, where `plait-cpp-codegen` and a C++ compiler are there, kernels are compiled here, and
    launched by a native host: neither Triton nor Python runs in a call. Otherwise the module runs
    as it is; it is stored in `cache`, since Triton reads kernels from their file, and compiles one
    when it is first launched.

    Kernels that Triton cannot compile run as torch operations, with a warning, unless
    `options.fallback` is off: then KernelCompilationError is raised. TritonVersionError is raised
    for a Triton that is too old, is missing or cannot be imported, TritonDeviceError for a GPU that
    Triton has no code for.
    """
    check_triton()
    chosen = options or TritonOptions.from_env()
    timer, store = profile or Profile(), cache or DiskCache()
    program = with_chains(_by_place(program))
    check_capability(_chip(program).capability)
    tuned: tuple[TunedTile, ...] = ()
    if chosen.autotune:
        from plait_triton_codegen.tuning import tuned_on_device

        with timer.phase("tune"):
            # Reports of indices are waited for, which is no time of a kernel's.
            changed = {"autotune": False, "cuda_graphs": False, "check_indices": False}
            plain = replace(chosen, **changed, check_launches=False)
            tuned = tuned_on_device(
                program,
                plain,
                _chip(program),
                store,
                lambda one, tiles: built(one, plain, store, Profile(), tiles),
                sizes,
            )
    tiles = {each.kernel: each.tile for each in tuned}
    given = program, chosen, store, timer, tiles
    try:
        made = built(*given, rendered=rendered)
    except KernelCompilationError as error:
        if error.is_of_device:
            first = in_a_line(next(iter(error.refused.values())))
            raise TritonDeviceError(
                f"Triton {triton_version()} has no code for this GPU: {first}",
                hint="a newer Triton may have; 'plait doctor' tells which are known",
            ) from error
        if not chosen.fallback:
            raise
        for name, reason in error.refused.items():
            first, message = in_a_line(reason), "%s runs as torch operations: %s"
            warn_once("triton", f"kernel: {first}", message, name, first)
        made = built(*given, error.refused, rendered)
    return replace(made, tuned=tuned)


def built(
    program: Program,
    chosen: TritonOptions,
    store: DiskCache,
    timer: Profile,
    tiles: Mapping[str, Tile],
    refused: Mapping[str, str] | None = None,
    rendered: Callable[[str], object] | None = None,
) -> TritonExecutable:
    """The same, with these tiles for kernels by name, and those by rule for others; those that
    Triton has refused, for which reasons, as torch operations.

    Raises KernelCompilationError.
    """
    with timer.phase("triton render"):
        mixed = _mixed(program)
        chip = _chip(program)
        aligned = aligned_arguments(program)
        hosts = [
            _rendered(
                *(kernel, kernel.name in mixed, chosen, chip),
                aligned.get(kernel.name, frozenset()),
                tiles.get(kernel.name),
            )
            for kernel in program.kernels
        ]
        sources = {k.name: text for k, text in zip(program.kernels, hosts, strict=True)}
        for kernel in program.kernels:
            if refused and kernel.name in refused:
                host = sources[kernel.name]
                sources[kernel.name] = _as_torch(kernel, host, refused[kernel.name])
        source = render_python(
            program,
            lambda kernel: sources[kernel.name].rendered,
            check_launches=chosen.check_launches,
            writes_last=True,
        )
        kernels = tuple(text.source for text in sources.values() if text.source is not None)
    if rendered is not None:
        rendered(source)

    def in_python(native: Program) -> Runner:
        plain = replace(chosen, native_host=False, cuda_graphs=False)
        return built(native, plain, store, Profile(), tiles)

    native = _native(program, sources, chosen, store, timer, in_python)
    reason, path, graphs = None, None, None
    if isinstance(native, str):
        reason = native
        with timer.phase("triton load"):
            run, path = _in_python(source, store)
    else:
        run, graphs = native.run, native.graphs
    timer.count("triton kernels", len(kernels))
    metadata: dict[str, str | int] = {
        "backend": "triton",
        "key": module_key(source),
        "host": "c++" if reason is None else "python",
        "kernels": len(kernels),
        "torch kernels": len(program.kernels) - len(kernels),
        "launches": sum(isinstance(step, Launch) for step in program.steps),
    }
    stored = (None, False) if isinstance(native, str) else (native.library, native.cache_hit)
    made = TritonExecutable(source, kernels, metadata, run, path, reason, *stored, graphs)
    told = {name: host.reason for name, host in sources.items() if host.reason is not None}
    unaligned = None if isinstance(native, str) else native.unaligned
    made = replace(made, torch_kernels=told, unaligned=unaligned)
    if chosen.cuda_graphs and reason is not None:
        message = "%s is not recorded as a CUDA graph: %s"
        warn_once("triton", f"graph: {reason}", message, program.name, made.graph_reason)
    return made


def _in_python(source: str, cache: DiskCache) -> tuple[Runner, Path | None]:
    """The host program of a module, and where the module is stored."""
    try:
        module = load_module(source, cache)
    except ImportError as error:
        raise unusable(error) from error
    host = cast("Callable[[Sequence[Tensor]], tuple[object, ...]]", module.names["run"])
    return (lambda *tensors: host(tensors)), module.path


def _native(
    program: Program,
    rendered: Mapping[str, HostKernel],
    options: TritonOptions,
    cache: DiskCache,
    timer: Profile,
    in_python: Callable[[Program], Runner],
) -> NativeHost | str:
    """What runs a program without Python, or why there is none."""
    if not options.native_host:
        return "the option native_host is off"
    if all(buffer.device.type != "cuda" for buffer in program.buffers):
        return "it is not on a GPU"
    if not torch.cuda.is_available():
        return "there is no GPU here"
    hosts = {name: each for name, each in rendered.items() if not name.endswith(ON_CPU)}
    sources = {name: each.source for name, each in hosts.items() if each.source is not None}
    if len(sources) < len(hosts):
        names = ", ".join(name for name, each in hosts.items() if each.source is None)
        return f"some of its kernels are torch operations: {names}"
    try:
        from plait_triton_codegen.native import native_host
    except ImportError as error:
        return f"plait-cpp-codegen is not installed ({error})"
    return native_host(program, sources, options, cache, timer, in_python)


def _by_place(program: Program) -> Program:
    """The program with kernels of their own for launches on the CPU alone, beside a GPU.

    A program on the CPU alone runs in the interpreter, all of it.
    """
    place = {buffer.name: buffer.device.type for buffer in program.buffers}
    if set(place.values()) < {"cpu", "cuda"}:
        return program
    steps = tuple(
        replace(step, kernel=f"{step.kernel}{ON_CPU}")
        if isinstance(step, Launch) and all(place[name] == "cpu" for name in step.buffers)
        else step
        for step in program.steps
    )
    launched = {step.kernel for step in steps if isinstance(step, Launch)}
    named = [replace(kernel, name=f"{kernel.name}{ON_CPU}") for kernel in program.kernels]
    kernels = [kernel for kernel in (*program.kernels, *named) if kernel.name in launched]
    return replace(program, kernels=tuple(kernels), steps=steps)


def _mixed(program: Program) -> frozenset[str]:
    """The kernels that are launched with buffers on a GPU and on the CPU."""
    place = {buffer.name: buffer.device.type for buffer in program.buffers}
    launches = [step for step in program.steps if isinstance(step, Launch)]
    return frozenset(
        step.kernel for step in launches if len({place[name] for name in step.buffers}) > 1
    )


def _chip(program: Program) -> Chip:
    """What all of the program's devices have, of those that are here."""
    devices = {(buffer.device.type, buffer.device.index) for buffer in program.buffers}
    indices = [index or 0 for kind, index in devices if kind == "cuda"]
    if not indices or not torch.cuda.is_available():
        return Chip()
    facts = [torch.cuda.get_device_properties(index) for index in indices]
    found = [getattr(each, "shared_memory_per_block_optin", 0) for each in facts]
    shared = min(int(each) or COMMON_SHARED_BYTES for each in found)
    processors = min(int(each.multi_processor_count) for each in facts)
    return Chip(shared, processors, min(10 * int(each.major) + int(each.minor) for each in facts))


def _as_torch(kernel: AnyKernel, refused: HostKernel, reason: str) -> HostKernel:
    """A kernel as torch operations, below what Triton has refused for a reason."""
    plain = torch_kernel(kernel)
    text = f"Triton cannot compile this kernel: {reason}\n\n{refused.rendered.source}"
    comment = "\n".join(f"# {line}".rstrip() for line in text.splitlines())
    told = RenderedKernel(f"{comment}\n\n\n{plain.source}", plain.call, plain.imports)
    return HostKernel(told, None, in_a_line(reason))


def _rendered(
    kernel: AnyKernel,
    is_mixed: bool,
    options: TritonOptions,
    chip: Chip,
    aligned: frozenset[int],
    tile: Tile | None,
) -> HostKernel:
    """A kernel where its buffers are: on the CPU beside a GPU, as torch operations."""
    if kernel.name.endswith(ON_CPU):
        return HostKernel(torch_kernel(kernel), None)
    host = host_kernel(kernel, options, tile=tile, chip=chip, aligned=aligned)
    if not is_mixed or host.source is None:
        return host
    plain = host.rendered
    call = f"{plain.call}_on_one_device"
    wrapper = f"def {call}(*arguments):\n    {plain.call}(*on_one_device(*arguments))\n"
    imports = (*plain.imports, "from plait_triton_codegen.runtime import on_one_device")
    return HostKernel(RenderedKernel(f"{plain.source}\n\n{wrapper}", call, imports), host.source)
