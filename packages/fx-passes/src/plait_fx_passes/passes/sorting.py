"""Calls behind what they use, and otherwise in the order that they have."""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop, heappush

from torch import fx

from plait_fx_passes.passes.cleanup import has_effects


def sort_calls(graph: fx.Graph) -> None:
    """Sort a graph topologically, stably: of the calls that can be next the first one is.

    Effects, as random draws, stay in their order. Kahn, "Topological sorting of large networks",
    1962.

    Raises:
        ValueError: calls depend on each other in a circle.
    """
    order = list(graph.nodes)
    place = {node: at for at, node in enumerate(order)}
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
    done = 0
    while ready:
        node = order[heappop(ready)]
        done += 1
        if node.op != "placeholder":
            output.prepend(node)
        for user in behind[node]:
            waits[user] -= 1
            if not waits[user] and user is not output:
                heappush(ready, place[user])
    if done != len(order) - 1:
        raise ValueError("calls depend on each other in a circle")
