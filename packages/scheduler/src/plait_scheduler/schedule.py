"""The scheduler as one flat list of stages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plait_ir_lowering import Graph, sorts_that_are_calls
from plait_scheduler.assemble import assemble
from plait_scheduler.attention import fuse_attention
from plait_scheduler.checks import keep_checks
from plait_scheduler.decisions import Decision, DecisionKind, DecisionLog, explain
from plait_scheduler.fusion import fuse
from plait_scheduler.inline import inline_producers
from plait_scheduler.no_points import without_empty_loops
from plait_scheduler.one_element import pick_elements
from plait_scheduler.options import SchedulerOptions, gpu_limits
from plait_scheduler.pad import pad_products
from plait_scheduler.parts import join_products
from plait_scheduler.program import CopyBack, Launch, Program
from plait_scheduler.prune import copy_targets, protect_mutated_inputs, prune
from plait_scheduler.regions import write_regions
from plait_scheduler.slices import slice_calls
from plait_scheduler.split import split_reductions
from plait_scheduler.together import gathered
from plait_scheduler.widening import wide_values
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_utils import Profile


@dataclass(frozen=True, slots=True)
class Schedule:
    """A program, and the decisions that led to it."""

    program: Program
    decisions: tuple[Decision, ...]

    def explain(self) -> str:
        """The decisions as text, one a line, with reasons and bytes saved."""
        return explain(self.decisions)


def device_limits(graph: Graph) -> dict[str, Any]:
    """The settings, by name, that suit the device on which `graph` computes, where they are not
    the usual ones."""
    buffers = (buffer for definition in graph.definitions for buffer in definition.buffers)
    on_cpu = all(buffer.device.type == "cpu" for buffer in buffers)
    return {} if on_cpu else gpu_limits()


def default_options(graph: Graph) -> SchedulerOptions:
    """Limits that suit the device on which `graph` computes."""
    return SchedulerOptions(**device_limits(graph))


def plan(
    graph: Graph,
    *,
    options: SchedulerOptions | None = None,
    profile: Profile | None = None,
    scratch: Collection[int] = (),
) -> Schedule:
    """Schedule `graph` and keep the decisions.

    `scratch` are positions of inputs that nobody needs any more: the program may compute what it
    needs for itself in their memory (`Program.overwritten` says of which it does).

    Raises ProgramError if the result is not sound (`options.verify`), which is an error
    of the scheduler.
    """
    chosen = default_options(graph) if options is None else options
    with nullcontext() if profile is None else profile.phase("schedule"):
        graph = prune(keep_checks(protect_mutated_inputs(graph)))
        graph = prune(without_empty_loops(graph))
        parts = write_regions(graph) if chosen.write_in_place else graph
        program, log = _planned(parts, chosen, scratch)
        if parts is not graph and _copies(program):  # parts that could not be written in place
            whole, of_whole = _planned(graph, chosen, scratch)
            if _copies(whole) < _copies(program):
                program, log = whole, of_whole
        program = _with_few_launches(program, chosen, log)
        if chosen.verify:
            from plait_scheduler.verifier import verify_program

            verify_program(program)
    if profile is not None:
        profile.count("kernels", len(program.kernels))
        launches = [step for step in program.steps if isinstance(step, Launch)]
        profile.count("launches", sum(not launch.chained for launch in launches))
    return Schedule(program, tuple(log.decisions))


def _planned(
    graph: Graph, options: SchedulerOptions, scratch: Collection[int]
) -> tuple[Program, DecisionLog]:
    """The program of a pruned graph, and the decisions."""
    log = DecisionLog(None if options.fuel < 0 else options.fuel)
    for name, reason in sorts_that_are_calls(graph):
        log.settle(DecisionKind.SORT, (name, ""), reason, "")
    graph = copy_targets(graph)
    graph = fuse_attention(graph, options, log)
    graph, sums = _with_own_products(graph, options, log)
    graph = join_products(graph, options, log)
    graph = slice_calls(graph, options, log)
    graph = pad_products(graph, options, log)
    graph = pick_elements(graph, log)
    graph = split_reductions(graph, options, log, sums)
    wide = wide_values(graph, options, log, sums)
    graph = inline_producers(graph, options, log, wide, sums)
    units = fuse(graph, options, log, sums)
    free = frozenset(graph.inputs[n].name for n in scratch)
    units = gathered(graph, units, options)
    return assemble(graph, units, options, log, wide, free), log


def _with_own_products(
    graph: Graph, options: SchedulerOptions, log: DecisionLog
) -> tuple[Graph, frozenset[str]]:
    """The graph with the forms of products that GPUs have kernels for, and the sums among them: no
    program of a CPU loads what makes them."""
    if options.fuse_mixtures:
        from plait_scheduler.mixtures import fuse_mixtures

        graph = fuse_mixtures(graph, options, log)
    if options.few_rows <= 0 and not (
        options.kernel_products or options.odd_columns or options.point_convolutions
    ):
        return graph, frozenset()
    from plait_scheduler.kernel_products import multiply_in_kernels

    return multiply_in_kernels(graph, options, log)


def _with_few_launches(program: Program, options: SchedulerOptions, log: DecisionLog) -> Program:
    """The program with launches combined and chained, which no program of a CPU loads."""
    if options.combine_launches:
        from plait_scheduler.combine import combine_launches
        from plait_scheduler.copies_back import with_launched_copies

        program = combine_launches(with_launched_copies(program, options), options, log)
    if options.chain_launches:
        from plait_scheduler.chain import chain_launches

        program = chain_launches(program, options, log)
    return program


def _copies(program: Program) -> int:
    """How many inputs are copied to at the end."""
    return sum(isinstance(step, CopyBack) for step in program.steps)


def schedule(
    graph: Graph,
    *,
    options: SchedulerOptions | None = None,
    profile: Profile | None = None,
) -> Program:
    """The program that carries out `graph`; see `plan`."""
    return plan(graph, options=options, profile=profile).program


def first_wrong_decision(
    graph: Graph,
    is_right: Callable[[Program], bool],
    *,
    options: SchedulerOptions | None = None,
) -> Decision | None:
    """The decision that breaks a program, found by bisection; None if the program is right.

    `is_right` builds and runs a program, and compares its results with others that are
    known to be right. Raises ValueError if the program is wrong without any decision.
    """
    chosen = default_options(graph) if options is None else options
    whole = plan(graph, options=chosen)
    if is_right(whole.program):
        return None
    taken = [decision for decision in whole.decisions if decision.accepted]
    right, wrong = 0, len(taken)
    if not is_right(schedule(graph, options=replace(chosen, fuel=0))):
        raise ValueError("the program is wrong without any of the scheduler's decisions")
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if is_right(schedule(graph, options=replace(chosen, fuel=middle))):
            right = middle
        else:
            wrong = middle
    return taken[wrong - 1]
