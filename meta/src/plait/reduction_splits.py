"""In how many parts large reductions are computed, by timing.

By rule a reduction to few elements is split so that its first stage has some programs for each of a
GPU's processors. With the option `triton.autotune` each such reduction, together with what its
kernels compute, is also built with half and twice as many parts, and in one stage; what beats the
rule's beyond doubt takes its place. Reductions that are one kernel are timed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from plait.codegen import Target
from plait.timed_programs import Builds, Times, fastest_program, may_time_programs
from plait_utils import dataclass, get_logger
from plait_utils.interrupts import seconds_left, stop_if_interrupted

if TYPE_CHECKING:
    from plait.options import CompileOptions
    from plait_ir_lowering import Graph
    from plait_scheduler import Program, SchedulerOptions

_OTHERS: Mapping[str, float] = {"half as many parts": 0.5, "twice as many parts": 2, "one stage": 0}
_RULE = "parts as by rule"


@dataclass(frozen=True, slots=True)
class TimedSplit:
    """What was found for reductions that one kernel computes."""

    names: tuple[str, ...]
    how: str
    goal: int
    """What they aim for, as `SchedulerOptions.split_goals`."""
    seconds: Mapping[str, float]
    """What each way took, the rule's first."""
    from_cache: bool

    def __str__(self) -> str:
        shown = ", ".join(self.names[:3])
        shown += f" and {len(self.names) - 3} others" if len(self.names) > 3 else ""
        where = ", as was found before" if self.from_cache else ""
        times = "; ".join(f"{way}: {taken * 1e6:.1f} µs" for way, taken in self.seconds.items())
        return f"{shown}: {self.how}{where} ({times})"


def may_time_splits(loops: Graph, target: Target, options: CompileOptions) -> bool:
    """Whether other splits of a graph's reductions can be timed."""
    chosen = {name for name, _ in options.scheduler}
    if chosen & {"split_goals", "split_points", "split_reductions"}:
        return False
    return may_time_programs(loops, target, options)


def timed_splits(
    loops: Graph, planned: SchedulerOptions, options: CompileOptions
) -> tuple[TimedSplit, ...]:
    """The reductions of a graph that are split, timed where it is; none in Triton's interpreter.

    Args:
        planned: how the scheduler is to schedule it otherwise.
        options: what the caller of `plait.compile` chose.
    """
    import torch

    from plait_triton_codegen import build, device_key, kernel_times

    (device,) = {str(b.device) for d in loops.definitions for b in d.buffers}
    place = torch.device(device)
    times: Times | None = kernel_times(place)
    if times is None:
        return ()
    chosen = replace(options.triton_options(), cuda_graphs=False, autotune=False)
    key = f"{device_key(place)} {chosen.cache_key()}"
    return choose_splits(loops, planned, lambda made: build(made, options=chosen), times, key)


def choose_splits(
    loops: Graph, planned: SchedulerOptions, build: Builds, times: Times, key: str
) -> tuple[TimedSplit, ...]:
    """The reductions of a graph that are split, each in as many parts as is fastest, while the
    seconds last that compiling may take.

    Args: as of `plait.kernel_products.choose_products`.
    """
    from plait_scheduler import plan, print_program, split_pieces

    found = []
    allowed = seconds_left()
    for piece in split_pieces(loops, plan(loops, options=planned)):
        stop_if_interrupted()
        left = seconds_left()
        if allowed is not None and left is not None and left < allowed / 2:
            break
        goals = {way: int(planned.split_points * share) for way, share in _OTHERS.items()}
        programs = {_RULE: plan(piece.graph, options=planned).program}
        for way, goal in goals.items():
            options = replace(planned, split_goals=f"{piece.own}={goal}")
            programs[way] = plan(piece.graph, options=options).program
        different: dict[str, Program] = {}
        texts: set[str] = set()
        for way, program in programs.items():
            if print_program(program) not in texts:
                texts.add(print_program(program))
                different[way] = program
        made = fastest_program(different, build, times, f"split {key}")
        if made is not None:
            goal = goals.get(made.chosen, planned.split_points)
            facts = made.chosen, goal, made.seconds, made.from_cache
            found.append(TimedSplit(piece.names, *facts))
            get_logger("compile").info("splits: %s", found[-1])
    return tuple(found)


def goals_of(found: tuple[TimedSplit, ...]) -> str:
    """What reductions aim for that are not split as by rule, as `SchedulerOptions.split_goals`."""
    other = [each for each in found if each.how != _RULE]
    return ",".join(f"{name}={each.goal}" for each in other for name in each.names)
