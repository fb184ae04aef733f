"""Call or kernel: products of matrices on GPUs, timed with what surrounds them.

By rule most products of GPUs are calls of torch's. With the option `triton.autotune` each product
of a graph, together with what a kernel would compute with it, is built in both ways and run on
tensors of its own sizes; the kernel in the blocks that are fastest there. Where it beats the call
beyond doubt, by the same test as choices for single kernels, it takes its place. Products that are
one kernel are timed once. The disk cache remembers what was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plait.codegen import Target
from plait.timed_programs import Builds, Times, fastest_program, may_time_programs
from plait_utils import dataclass, get_logger
from plait_utils.interrupts import stop_if_interrupted

if TYPE_CHECKING:
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
    """Whether products of a graph may be kernels, and can be timed."""
    if any(name == "kernel_products" for name, _ in options.scheduler):
        return False
    return may_time_programs(loops, target, options)


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
    found = fastest_program(programs, build, times, f"product {key}")
    if found is None:
        return TimedProducts(names, False, 0.0, 0.0, from_cache=False)
    seconds = found.seconds[_OWN], found.seconds[_CALLS]
    return TimedProducts(names, found.chosen == _OWN, *seconds, found.from_cache)
