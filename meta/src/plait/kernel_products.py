"""Call or kernel: products of matrices on GPUs, timed with what surrounds them.

By rule most products of GPUs are calls of torch's. With the option `triton.autotune` each product
of a graph, together with what a kernel would compute with it, is built in both ways and run on
tensors of its own sizes; the kernel in the blocks that are fastest there. Where it beats the call
beyond doubt, by the same test as choices for single kernels, it takes its place. Products that are
one kernel are timed once. The disk cache remembers what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plait.codegen import Target
from plait_utils import DiskCache, dataclass, get_logger, stable_hash
from plait_utils.interrupts import stop_if_interrupted

if TYPE_CHECKING:
    import torch

    from plait.options import CompileOptions
    from plait_ir_lowering import Graph
    from plait_scheduler import Program, SchedulerOptions
_CALLS, _OWN = "calls", "own"
_ALL = "*"
"""Stands for all products among the scheduler's options."""
NOTHING_BY_RULE: Mapping[str, Any] = {
    "few_rows": 0,
    "odd_columns": False,
    "point_convolutions": False,
}
"""The scheduler's options with which no product is a kernel that is not named."""

Builds = Callable[["Program"], Callable[..., object]]
Times = Callable[[Mapping[str, Callable[[], object]]], Mapping[str, Sequence[float]]]
"""The seconds of one call of each, round by round."""


@dataclass(frozen=True, slots=True)
class TimedProducts:
    """What was found for products that one kernel computes."""

    names: tuple[str, ...]
    is_own: bool
    """Whether that kernel takes the place of their calls."""
    seconds: float
    """What the kernel took."""
    call_seconds: float
    """What the calls took, with the kernel behind them."""
    from_cache: bool

    def __str__(self) -> str:
        shown = ", ".join(self.names[:3])
        shown += f" and {len(self.names) - 3} others" if len(self.names) > 3 else ""
        where = ", as was found before" if self.from_cache else ""
        times = f"{self.seconds * 1e6:.1f} µs and {self.call_seconds * 1e6:.1f} µs by calls"
        how = "kernels of plait's own" if self.is_own else "calls of torch's, as by rule"
        return f"{shown}: {how}, {times}{where}"


def may_time_products(loops: Graph, target: Target, options: CompileOptions) -> bool:
    """Whether products of a graph may be kernels, and can be timed: all sizes are known, and it is
    on one GPU, or its kernels run in Triton's interpreter."""
    devices = {buffer.device for d in loops.definitions for buffer in d.buffers}
    kinds = {device.type for device in devices}
    on_gpu = kinds == {"cuda"} and target is Target.BY_DEVICE
    if len(devices) != 1 or not (on_gpu or target is Target.TRITON) or options.is_strict:
        return False
    if any(name == "kernel_products" for name, _ in options.scheduler):
        return False
    return options.triton_options().autotune and _has_known_sizes(loops)


def _has_known_sizes(loops: Graph) -> bool:
    layouts = [b.layout for b in loops.inputs]
    layouts += [b.layout for d in loops.definitions for b in d.buffers]
    return all(size.is_constant for layout in layouts for size in (*layout.size, *layout.stride))


def timed_products(
    loops: Graph, planned: SchedulerOptions, options: CompileOptions
) -> tuple[TimedProducts, ...]:
    """The products of a graph, timed as calls and as kernels where it is; as CUDA graphs, where
    its program is to be one: then the host's time does not count.

    Args:
        planned: how the scheduler is to schedule it otherwise.
        options: what the caller of `plait.compile` chose.
    """
    import torch

    from plait_cpp_codegen import times_in_turns
    from plait_triton_codegen import build, device_clock, device_key

    (device,) = {str(b.device) for d in loops.definitions for b in d.buffers}
    place = torch.device(device)
    clock = device_clock(place)
    graphs = place.type == "cuda" and options.cuda_graphs
    chosen = replace(options.triton_options(), cuda_graphs=graphs)
    return choose_products(
        loops,
        planned,
        lambda program: build(program, options=chosen),
        lambda runs: times_in_turns(runs, clock),
        f"{device_key(place)} {chosen!r}",
    )


def choose_products(
    loops: Graph, planned: SchedulerOptions, build: Builds, times: Times, key: str
) -> tuple[TimedProducts, ...]:
    """The products of a graph, each by what is fastest.

    Args:
        planned: how the scheduler is to schedule it otherwise.
        build: makes a program callable. Raises where it cannot.
        times: runs several such in turns.
        key: says on which device, and with which compiler.
    """
    from plait_scheduler import plan, product_pieces

    planned = replace(planned, **NOTHING_BY_RULE)
    whole = plan(loops, options=replace(planned, kernel_products=_ALL))
    found = []
    for piece in product_pieces(loops, whole):
        stop_if_interrupted()
        programs = {
            name: plan(piece.graph, options=replace(planned, kernel_products=own)).program
            for name, own in ((_CALLS, ""), (_OWN, ",".join(piece.own)))
        }
        made = _known_or_timed(piece.names, programs, build, times, key)
        get_logger("compile").info("products: %s", made)
        found.append(made)
    return tuple(found)


def _known_or_timed(
    names: tuple[str, ...], programs: Mapping[str, Program], build: Builds, times: Times, key: str
) -> TimedProducts:
    from plait_scheduler import print_program

    texts = [print_program(program) for program in programs.values()]
    place, cache = stable_hash("product", "2", *texts, key), DiskCache()
    known = (cache.get(place) or b"").decode(errors="replace").split("\n")
    if len(known) == 3 and known[0] in (_CALLS, _OWN):
        seconds = float(known[1]), float(known[2])
        return TimedProducts(names, known[0] == _OWN, *seconds, from_cache=True)
    try:
        chosen, own, calls = _timed(programs, build, times)
    except Exception as error:  # of made-up inputs, or no compiler: nothing is lost
        get_logger("compile").info("%s is not timed: %s", names[0], error)
        return TimedProducts(names, False, 0.0, 0.0, from_cache=False)
    cache.put(place, f"{chosen}\n{own}\n{calls}".encode())
    return TimedProducts(names, chosen == _OWN, own, calls, from_cache=False)


def _timed(
    programs: Mapping[str, Program], build: Builds, times: Times
) -> tuple[str, float, float]:
    """Which is faster, and what the kernel and the calls took."""
    from statistics import median

    from plait_cpp_codegen import fastest

    runs, ends = {}, _ends_of_groups(programs[_CALLS])
    for name, program in programs.items():
        run, tensors = build(program), _inputs(program, ends)
        runs[name] = _call(run, tensors)
    chosen = fastest(runs, _CALLS, times)
    seconds = times(runs)
    return chosen, median(seconds[_OWN]), median(seconds[_CALLS])


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
    """Tensors like a program's inputs: floats are drawn, from a generator of its own, groups of
    rows equally large, others are zeros."""
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
        rows, count = ends.get(name, (0, 0))
        for number in range(count):
            tensor[number] = (number + 1) * rows // count
        made.append(tensor)
    return made
