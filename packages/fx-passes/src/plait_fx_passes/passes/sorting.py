"""Calls behind what they use, and otherwise in the order that they have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from torch import fx

from plait_fx_passes.passes.cleanup import has_effects


def _prepend(node: fx.Node, before: fx.Node) -> None:
    before.prepend(node)


def sort_calls(graph: fx.Graph, move: Callable[[fx.Node, fx.Node], object] = _prepend) -> None:
    """Sort a graph topologically, stably: of the calls that can be next the first one is.

    Effects, as random draws, stay in their order.

    Args:
        graph: changed in place.
        move: what lets a call that comes behind one that it stood before stand before another
            node, as `PassContext.move` does.

    Raises:
        ValueError: calls depend on each other in a circle.
    """
    order = list(graph.nodes)
    place = {node: at for at, node in enumerate(order)}
    output, furthest = order[-1], -1
    for node in _sorted(order, place):
        if node.op != "placeholder" and place[node] < furthest:
            move(node, output)
        elif node.op != "placeholder":
            output.prepend(node)
            furthest = place[node]


def _sorted(order: list[fx.Node], place: dict[fx.Node, int]) -> list[fx.Node]:
    """All but the last node, the output. Kahn, "Topological sorting of large networks", 1962."""
    behind: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    waits = dict.fromkeys(order, 0)
    last: fx.Node | None = None
    for node in order:
        before = list(node.all_input_nodes)
        if has_effects(node):
            before += [last] if last is not None else []
            last = node
        for each in before:
            behind[each].append(node)
            waits[node] += 1
    output = order[-1]
    ready = [place[node] for node in order if not waits[node] and node is not output]
    heapify(ready)
    done: list[fx.Node] = []
    while ready:
        node = order[heappop(ready)]
        done.append(node)
        for user in behind[node]:
            waits[user] -= 1
            if not waits[user] and user is not output:
                heappush(ready, place[user])
    if len(done) != len(order) - 1:
        raise ValueError("calls depend on each other in a circle")
    return done
