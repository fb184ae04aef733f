"""Graphs that call collectives: in which order, and what is compiled between them.

Processes need not run the same program: one may make calls that another does not, in a group of
some of them. So by default each process makes its collectives in the order of its own program, and
none becomes part of another: whatever the others run, it meets the calls that it met before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from plait.passes import run_all
from plait.record import CompiledGraph, Outcome, Runner
from plait_utils.collectives import is_collective

if TYPE_CHECKING:
    from plait.codegen import Built
    from plait.options import CompileOptions
    from plait.stages import Stages
    from plait_fx_passes import AtenGraph

Generate: TypeAlias = "Callable[[AtenGraph, Stages, Mapping[int, int]], Built]"


def is_in_parts(aten: AtenGraph, options: CompileOptions) -> bool:
    """Whether a flat graph is compiled in parts between the collectives that it calls.

    Where calls are compared with eager, and where sizes are open, it is not: lowering refuses it,
    and the captured graph is cut instead.
    """
    from plait.symbolic import has_open_sizes

    is_compared = bool(options.verify)
    return calls_collectives(aten) and not is_compared and not has_open_sizes(aten.example_inputs)


def calls_collectives(aten: AtenGraph) -> bool:
    """`plait_fx_passes.communicates` without the passes of collectives, which few programs need."""
    return any(is_collective(node.target) for node in aten.graph.nodes)


def in_order(aten: AtenGraph, stages: Stages, options: CompileOptions) -> AtenGraph:
    """A graph whose collectives start as soon as their operands are there, and are waited for right
    before their results are used; itself where it has none."""
    if not is_in_parts(aten, options):
        return aten
    passes = options.collective_passes()
    if not passes:
        return aten
    with stages.stage("passes"):
        return run_all(aten, passes, stages, options)


def written_last(aten: AtenGraph, written: Mapping[int, int]) -> Mapping[int, int]:
    """Which results a program writes over inputs, of those that it may: where it calls collectives,
    those that are computed when all of them are over."""
    if not calls_collectives(aten):
        return written
    from plait_fx_passes import collective_parts

    return collective_parts(aten, written).written


def between_collectives(
    aten: AtenGraph, stages: Stages, written: Mapping[int, int], generate: Generate
) -> Built:
    """A program that calls collectives between programs of its own.

    Args:
        aten: a flat graph of static sizes.
        stages: get a record of each part.
        written: the results that it writes over inputs, by :func:`written_last`.
        generate: makes code for a part.
    """
    from plait.codegen import Built
    from plait_fx_passes import collective_parts, parts_runner

    parts = collective_parts(aten, written)
    made: list[CompiledGraph] = []
    built: list[Built] = []

    def compile_part(part: AtenGraph, over: Mapping[int, int]) -> Runner:
        of_part = stages.part(f"part-{len(made)}")
        of_part.keep(aten=part)
        built.append(generate(part, of_part, over))
        made.append(of_part.finish(part, Outcome.COMPILED, built[-1].run))
        return built[-1].run

    run = parts_runner(parts, compile_part)
    calls = len(parts.steps) - len(made)
    stages.keep(parts=tuple(made), pieces=f"in {len(made)} parts between {calls} collective calls")
    if not built:
        return Built("python", "Python", "py", run, None)
    first = built[0]
    return Built(first.backend, first.language, first.extension, run, None)
