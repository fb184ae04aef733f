"""Which stage makes a compiled graph wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from plait.record import Runner

if TYPE_CHECKING:
    from torch import fx

    from plait.options import CompileOptions
    from plait_fx_passes import AtenGraph, JointGraph


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

    def by_kernels(graph: AtenGraph) -> Runner:
        if isinstance(recorded, fx_passes.JointGraph):
            joint = recorded.replace_graph(graph.graph)
            parts = fx_passes.partition(joint)
            halves = parts.forward.module(), parts.backward.module()
            return fx_passes.wrap_training(joint, parts, *halves, captured)
        return fx_passes.wrap_runtime(graph, graph.module())

    is_joint = isinstance(recorded, fx_passes.JointGraph)
    flat = recorded.flat() if isinstance(recorded, fx_passes.JointGraph) else recorded
    if not is_right(by_kernels(flat)):
        return f"the stage {'joint' if is_joint else 'aten'!r}: its graph is wrong as recorded"
    passes = tuple(each for each in options.passes() if each.name not in options.disabled)
    culprit = fx_passes.find_bad_rewrite(flat, lambda graph: is_right(by_kernels(graph)), passes)
    if culprit is not None:
        return f"rewrite {culprit.rewrite} of the passes, made by {culprit.pass_name!r}"
    return "the code around the compiled program"
