"""Waits for collectives as late as what uses their results allows."""

from __future__ import annotations

from torch import fx

from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.passes.collectives.calls import WAIT, is_elementwise, is_part


def _wait_late(context: PassContext) -> None:
    movable = _movable(context.graph)
    for node in reversed(list(context.graph.nodes)):
        if node in movable and node.users:
            _sink(context, node, movable)


def _movable(graph: fx.Graph) -> set[fx.Node]:
    """The waits, views of what they give, and elementwise work behind them that ends in results.

    A mean of gradients is such work: nothing but the caller needs it.
    """
    last = ends(graph)
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.target is WAIT:
            awaited = node.all_input_nodes[0]
            if all(user.target is WAIT for user in awaited.users):
                found.add(node)
        elif not found.isdisjoint(node.all_input_nodes) and (is_part(node) or node in last):
            found.add(node)
    return found


def ends(graph: fx.Graph) -> set[fx.Node]:
    """Elementwise calls and views whose values nothing else uses but the caller."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        finishes = node.op == "call_function" and (is_part(node) or is_elementwise(node))
        if finishes and all(user in found or user.op == "output" for user in node.users):
            found.add(node)
    return found


def _sink(context: PassContext, node: fx.Node, movable: set[fx.Node]) -> None:
    """Move a node right before the first that uses it, and before others that wait there."""
    place = min(node.users)
    while place.prev is not node and place.prev in movable:
        place = place.prev
    if place.prev is node or not context.fuel.take():
        return
    place.prepend(node)
    context.rewrites += 1


LATE_WAITS = Pass(
    "late-waits",
    _wait_late,
    "waits for collectives right before their results are used; what only finishes results, as the"
    " mean of a gradient, comes last",
)
