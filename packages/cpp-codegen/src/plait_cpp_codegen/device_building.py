"""Program and kernels of a GPU → what runs it, without Python between its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache as once
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from plait_cpp_codegen.building import (
    calls_python,
    cpu_kernels,
    runtime_for,
    settings,
    without_comments,
)
from plait_cpp_codegen.device_graphs import DeviceGraphs, buffer_uses, graph_refusal
from plait_cpp_codegen.device_host import DeviceCode, DeviceHostWriter, DeviceKernel
from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_cpp_codegen.external import PythonCalls
from plait_cpp_codegen.input_writes import InputWrites
from plait_cpp_codegen.options import CppOptions
from plait_cpp_codegen.outputs import split_outputs
from plait_cpp_codegen.shared_library import load_cached
from plait_cpp_codegen.tables import Tables
from plait_cpp_codegen.toolchain import find_toolchain
from plait_cpp_codegen.units import Source
from plait_ir_lowering import Device
from plait_scheduler import Program
from plait_utils import DiskCache, Profile, dataclass, stable_hash

Runner: TypeAlias = Callable[..., tuple[object, ...]]


def device_of(program: Program) -> int:
    """The GPU that a program is on, some of whose buffers may be the CPU's. Raises
    UnsupportedProgramError."""
    devices = {buffer.device for buffer in program.buffers} - {Device("cpu")}
    device = devices.pop() if len(devices) == 1 else None
    if device is None or device.type != "cuda":
        raise UnsupportedProgramError("a program that is not on one GPU")
    return device.index or 0


def render_device_host(
    program: Program, kernels: Mapping[str, DeviceKernel], *, check_launches: bool = False
) -> str:
    """The C++ that runs a program of a GPU, whose kernels are machine code when it is loaded.

    Raises UnsupportedProgramError.
    """
    return _source(split_outputs(program)[0], kernels, check_launches).text


def _source(
    program: Program,
    kernels: Mapping[str, DeviceKernel],
    check_launches: bool = False,
    vector_bytes: int = 32,
) -> Source:
    """The C++, with the kernels that a program has beside `kernels`: those of the CPU."""
    own = [kernel for kernel in program.kernels if kernel.name not in kernels]
    functions, on_cpu = cpu_kernels(own, vector_bytes)
    tables = Tables(device_of(program) + 1)
    host = DeviceHostWriter(
        program, on_cpu, tables=tables, launched=kernels, check_launches=check_launches
    )
    return Source(settings() if own else "", functions, host.write())


@dataclass(frozen=True, slots=True)
class DeviceHost:
    """What runs a program of a GPU."""

    run: Runner
    library: str | None
    """The key of its library in the cache, where that alone can run it, with the machine code of
    its kernels: see `load_stored`."""
    cache_hit: bool


def build_device_host(
    program: Program,
    kernels: Mapping[str, DeviceKernel],
    codes: Callable[[], Mapping[str, DeviceCode]],
    otherwise: Callable[[Program], Runner],
    *,
    graphs: DeviceGraphs | None = None,
    check_launches: bool = False,
    options: CppOptions | None = None,
    cache: DiskCache | None = None,
    profile: Profile | None = None,
) -> DeviceHost:
    """What runs a program of a GPU: one native call with its input tensors, on torch's current
    stream, with memory of torch's allocator.

    Args:
        kernels: by their names in the program, those of the GPU. Others run on the CPU.
        codes: gives their machine code; called while the C++ compiler works, if it does.
        otherwise: gives what runs a program on inputs whose memory does not begin at a multiple
            of 16 bytes; asked when the first such come.
        graphs: record what calls launch as CUDA graphs, where that can be; it is told of them.
        check_launches: wait for the GPU after each launch, call and copy: an error then names the
            one that failed, with the user's lines. Nothing is recorded.

    It raises IndexError for an index out of range, torch.OutOfMemoryError, RuntimeError for errors
    of the driver; of these DeviceFailedError (`plait_utils.device_errors`) where a kernel has
    failed, after which the process cannot use the GPU.
    UnsupportedProgramError is raised for a program that this host cannot express,
    CompilerNotFoundError and CompilationError where none can be built, as where torch or the driver
    lack something; and what `codes` raises.
    """
    timer, store = profile or Profile(), cache or DiskCache()
    toolchain = find_toolchain(options or CppOptions.from_env())
    with timer.phase("codegen"):
        native, plan = split_outputs(program)
        source = _source(native, kernels, check_launches, toolchain.vector_bytes)
    libraries = toolchain.bare if source.is_bare else ()
    key = stable_hash("device program", without_comments(source.text), toolchain.key, libraries)
    compiled = once(codes)
    recorded: list[object] = []

    def load(path: Path) -> Callable[..., tuple[Tensor, ...]]:
        found = compiled()
        ordered = tuple(tuple(found[name]) for name in kernels)
        on_gpu = (ordered, _late(lambda: otherwise(native)), *recorded)
        return runtime.load_program(str(path), PythonCalls(native), *on_gpu)

    with timer.phase("build"):
        runtime = runtime_for(toolchain, store, gpu=True)
        if graphs is not None and _may_record(native, graphs, check_launches):
            graphs.connect(runtime.new_stream)
            recorded += [graphs, buffer_uses(native)]
        run, hit = load_cached(
            store,
            key,
            lambda output: toolchain.build(source.units(), output, *libraries, meanwhile=compiled),
            "plait_signature",
            load,
        )
    timer.count("cache hits" if hit else "cache misses")
    alone = plan is None and not calls_python(program)
    changes = InputWrites(native).first() is not None
    return DeviceHost(
        plan.around(run, changes=changes) if plan else run, key if alone else None, hit
    )


def _may_record(program: Program, graphs: DeviceGraphs, check_launches: bool) -> bool:
    """Whether a program can be recorded, as far as its steps tell; if not, that is told."""
    reason = graph_refusal(program)
    if check_launches:
        reason = "the option check_launches waits for each launch"
    if reason is not None:
        graphs.refused(reason)
    return reason is None


def _late(make: Callable[[], Runner]) -> Runner:
    """What is made when it is first called."""
    made = once(make)
    return lambda *inputs: made()(*inputs)
