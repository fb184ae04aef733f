"""Programs that give the same, built and run on tensors of their own: the fastest, remembered.

What is faster than the rule's beyond doubt is chosen, by the same test as choices for kernels. The
disk cache keeps it by the programs' text, and what else times depend on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from plait.codegen import Target
from plait_utils import DiskCache, dataclass, get_logger, stable_hash

if TYPE_CHECKING:
    import torch

    from plait.options import CompileOptions
    from plait_ir_lowering import Graph
    from plait_scheduler import Program

_FORMAT = "1"

Builds = Callable[["Program"], Callable[..., object]]
Times = Callable[[Mapping[str, Callable[[], object]]], Mapping[str, Sequence[float]]]
"""The seconds of one call of each, round by round."""


@dataclass(frozen=True, slots=True)
class TimedPrograms:
    """What was found for programs by name."""

    chosen: str
    seconds: Mapping[str, float]
    """What a call of each took, the rule's first."""
    from_cache: bool


def may_time_programs(loops: Graph, target: Target, options: CompileOptions) -> bool:
    """Whether parts of a graph can be timed: all sizes are known, and it is on one GPU, or its
    kernels run in Triton's interpreter."""
    devices = {buffer.device for d in loops.definitions for buffer in d.buffers}
    kinds = {device.type for device in devices}
    on_gpu = kinds == {"cuda"} and target is Target.BY_DEVICE
    if len(devices) != 1 or not (on_gpu or target is Target.TRITON) or options.is_strict:
        return False
    return options.triton_options().autotune and _has_known_sizes(loops)


def _has_known_sizes(loops: Graph) -> bool:
    layouts = [b.layout for b in loops.inputs]
    layouts += [b.layout for d in loops.definitions for b in d.buffers]
    return all(size.is_constant for layout in layouts for size in (*layout.size, *layout.stride))


def fastest_program(
    programs: Mapping[str, Program], build: Builds, times: Times, key: str
) -> TimedPrograms | None:
    """The fastest of programs by name, the first of which is the rule's; None where they cannot be
    timed.

    Args:
        build: makes a program callable. Raises where it cannot.
        times: runs several such in turns.
        key: says what is chosen, on which device, and with which compiler.
    """
    from plait_scheduler import print_program

    texts = [f"{name}\n{print_program(program)}" for name, program in programs.items()]
    place, cache = stable_hash("timed programs", _FORMAT, *texts, key), DiskCache()
    known = _read(programs, cache.get(place))
    if known is not None:
        return known
    try:
        made = _timed(programs, build, times)
    except Exception as error:  # of made-up inputs, or no compiler: nothing is lost
        get_logger("compile").info("%s are not timed: %s", ", ".join(programs), error)
        return None
    held = {"chosen": made.chosen, "seconds": dict(made.seconds)}
    cache.put(place, json.dumps(held).encode())
    return made


def _read(programs: Mapping[str, Program], data: bytes | None) -> TimedPrograms | None:
    """What is stored; None where it has another form."""
    try:
        held = {} if data is None else json.loads(data)
        chosen, seconds = held["chosen"], held["seconds"]
        found = {name: float(seconds[name]) for name in programs}
    except (ValueError, KeyError, TypeError):
        return None
    return TimedPrograms(chosen, found, from_cache=True) if chosen in found else None


def _timed(programs: Mapping[str, Program], build: Builds, times: Times) -> TimedPrograms:
    from statistics import median

    from plait_cpp_codegen import fastest

    ends = {name: end for each in programs.values() for name, end in _ends_of_groups(each).items()}
    runs = {name: _call(build(each), _inputs(each, ends)) for name, each in programs.items()}
    seconds: dict[str, float] = {}

    def in_turns(some: Mapping[str, Callable[[], object]]) -> Mapping[str, Sequence[float]]:
        made = times(some)
        seconds.update({name: median(taken) for name, taken in made.items()})
        return made

    chosen = fastest(runs, next(iter(runs)), in_turns)
    return TimedPrograms(chosen, seconds, from_cache=False)


def _call(run: Callable[..., object], tensors: Sequence[torch.Tensor]) -> Callable[[], object]:
    return lambda: run(*tensors)


def _ends_of_groups(program: Program) -> dict[str, tuple[int, int]]:
    """The buffers that tell where groups end, of rows, columns or terms; of each how many of these
    there are, and how many groups."""
    from plait_ir_lowering import TensorRef
    from plait_scheduler import GROUPED, CallExtern

    buffers = {buffer.name: buffer.layout.size for buffer in program.buffers}
    found = {}
    for step in program.steps:
        if isinstance(step, CallExtern) and step.op == GROUPED:
            *matrices, ends = (each for each in step.args[:3] if isinstance(each, TensorRef))
            if len(matrices) < 2:  # of which none is in groups
                continue
            left, right = (
                each.view.size if each.view else buffers[each.buffer] for each in matrices
            )
            whole = right[-1] if len(left) == 3 else left[0] if len(right) == 3 else left[1]
            (count,) = buffers[ends.buffer]
            found[ends.buffer] = whole.as_int(), count.as_int()
    return found


def _inputs(program: Program, ends: Mapping[str, tuple[int, int]]) -> list[torch.Tensor]:
    """Tensors like a program's inputs: floats are drawn, from a generator of its own, groups
    equally large, others are zeros."""
    import torch

    from plait_ir_lowering import to_torch_dtype

    buffers = {buffer.name: buffer for buffer in program.buffers}
    made = []
    for name in program.inputs:
        buffer = buffers[name]
        layout, place = buffer.layout, torch.device(str(buffer.device))
        size, stride = ([each.as_int() for each in part] for part in (layout.size, layout.stride))
        dtype = to_torch_dtype(buffer.dtype)
        tensor = torch.empty_strided(size, stride, dtype=dtype, device=place).zero_()
        if dtype.is_floating_point:
            drawn = tensor if dtype.itemsize > 1 else torch.empty_like(tensor, dtype=torch.float16)
            tensor.copy_(drawn.uniform_(0.1, 0.9, generator=torch.Generator(place).manual_seed(0)))
        whole, count = ends.get(name, (0, 0))
        for number in range(count):
            tensor[number] = (number + 1) * whole // count
        made.append(tensor)
    return made
