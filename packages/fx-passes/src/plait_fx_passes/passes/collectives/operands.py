"""What a collective sends is computed before what it does not need.

A backward computes the gradient of a weight, and then that of what the weight was multiplied by,
which the layer before waits for. The other way round the one is computed while the other is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import fx

from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.cleanup import has_effects
from plait_fx_passes.passes.collectives.calls import WAIT, Kind, is_fence, start_of


def _compute_operands_first(context: PassContext) -> None:
    segment: list[fx.Node] = []
    for node in list(context.graph.nodes):
        start = start_of(node)
        if start is None:
            segment = [*segment, node] if node.op == "call_function" else segment
            continue
        if start.kind is not Kind.GATHER:  # memory decides where these start
            _start_before_others(context, node, segment)
        segment = []


def _start_before_others(context: PassContext, start: fx.Node, segment: Sequence[fx.Node]) -> None:
    """Move what a collective does not need, of the nodes since the last one, behind it."""
    staying = [start, *(node for node in segment if _must_stay(node))]
    first = _needed(staying, set(segment))
    others = [node for node in segment if node not in first]
    computed = any(node.target is not WAIT for node in others)
    if not computed or not context.fuel.take():
        return
    place = start
    for node in others:
        place.append(node)
        place = node
    context.rewrites += 1


def _must_stay(node: fx.Node) -> bool:
    """Whether others may notice when a node is called; of a wait, nobody does."""
    return node.target is not WAIT and (is_fence(node) or has_effects(node))


def _needed(nodes: Iterable[fx.Node], among: set[fx.Node]) -> set[fx.Node]:
    """Some nodes, and which of others they depend on."""
    found = set(nodes)
    waiting = list(found)
    while waiting:
        for each in waiting.pop().all_input_nodes:
            if each in among and each not in found:
                found.add(each)
                waiting.append(each)
    return found


OPERANDS_FIRST = Pass(
    "operands-first",
    _compute_operands_first,
    "computes what is reduced before what comes before it in the program but is not needed for it",
)
