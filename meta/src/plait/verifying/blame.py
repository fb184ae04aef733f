"""Which stage makes a compiled graph wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from plait.passes import BEFORE_GRAD, changed, copied, name_of
from plait.record import Runner

if TYPE_CHECKING:
    from torch import fx

    from plait.options import CompileOptions
    from plait_fx_passes import AtenGraph, Culprit, JointGraph


def blame_stage(
    captured: fx.GraphModule,
    recorded: AtenGraph | JointGraph,
    options: CompileOptions,
    is_right: Callable[[Runner], bool],
) -> str:
    """The first stage whose graph, run by ATen's kernels, is wrong; for passes, which rewrite.

    Args:
        captured: the torch-level graph.
        recorded: what the first stage made of it.
        options: which passes ran.
        is_right: whether a program does what the captured graph does.
    """
    import plait_fx_passes as fx_passes

    is_joint = isinstance(recorded, fx_passes.JointGraph)
    flat = recorded.flat() if isinstance(recorded, fx_passes.JointGraph) else recorded
    if not is_right(by_kernels(flat, recorded, captured)):
        told = _before_grad(captured, options, is_right)
        stage = "joint" if is_joint else "aten"
        return told or f"the stage {stage!r}: its graph is wrong as recorded"
    passes = tuple(each for each in options.passes() if each.name not in options.disabled)
    culprit = fx_passes.find_bad_rewrite(
        flat, lambda graph: is_right(by_kernels(graph, recorded, captured)), passes
    )
    if culprit is not None:
        return _rewrite(culprit)
    improved = fx_passes.run_passes(flat, passes)
    told = _after_grad(improved, recorded, captured, options, is_right)
    return told or "the code around the compiled program"


def _rewrite(culprit: Culprit) -> str:
    return f"rewrite {culprit.rewrite} of the passes, made by {culprit.name}"


def by_kernels(
    graph: AtenGraph,
    recorded: AtenGraph | JointGraph,
    captured: fx.GraphModule,
    parts: Mapping[int, AtenGraph] = MappingProxyType({}),
) -> Runner:
    """A recorded graph after passes, by ATen's kernels; with other `parts`: 0 is the forward, or
    all where there is no backward, 1 the backward."""
    import plait_fx_passes as fx_passes

    if isinstance(recorded, fx_passes.JointGraph):
        joint = recorded.replace_graph(graph.graph)
        halves = fx_passes.partition(joint)
        forward, backward = parts.get(0, halves.forward), parts.get(1, halves.backward)
        return fx_passes.wrap_training(joint, halves, forward.module(), backward.module(), captured)
    made = parts.get(0, graph)
    return fx_passes.wrap_runtime(made, made.module())


def _before_grad(
    captured: fx.GraphModule, options: CompileOptions, is_right: Callable[[Runner], bool]
) -> str:
    """The first of the user's functions of the captured graph after which that is wrong."""
    program = copied(captured)
    for place in BEFORE_GRAD:
        for function in getattr(options.user_passes, place):
            program = changed(program, function, place)
            if not is_right(program):
                return f"the pass {name_of(function)} of {place}"
    return ""


def _after_grad(
    improved: AtenGraph,
    recorded: AtenGraph | JointGraph,
    captured: fx.GraphModule,
    options: CompileOptions,
    is_right: Callable[[Runner], bool],
) -> str:
    """The rewrite of the user's passes after gradients that makes a program wrong."""
    import plait_fx_passes as fx_passes

    user = options.user_passes.after_grad
    passes = tuple(each for each in user if each.name not in options.disabled)
    if not passes:
        return ""
    parts: list[AtenGraph] = [improved]
    if isinstance(recorded, fx_passes.JointGraph):
        halves = fx_passes.partition(recorded.replace_graph(improved.graph))
        parts = [halves.forward, halves.backward]
    for position, part in enumerate(parts):

        def is_good(graph: AtenGraph, position: int = position) -> bool:
            return is_right(by_kernels(improved, recorded, captured, {position: graph}))

        culprit = fx_passes.find_bad_rewrite(part, is_good, passes)
        if culprit is not None:
            return _rewrite(culprit)
    return ""
