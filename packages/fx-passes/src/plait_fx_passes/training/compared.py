"""Values that gradients compare with what is computed of them.

The gradient of a maximum goes to the elements that are equal to it. Computed again, these may
differ by a rounding from those that it was found among, and then none is equal: the gradient would
be 0 / 0. Eager has saved them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

import torch
from torch import fx

from plait_fx_passes.aliasing import storage_root

aten = torch.ops.aten
_COMPARES = (aten.eq.Tensor, aten.ne.Tensor)


def compared(graph: fx.Graph, forward: Set[fx.Node], order: Mapping[fx.Node, int]) -> set[fx.Node]:
    """The forward's values by which it is decided what is equal to what was computed of it.

    Args:
        graph: of a program and its gradients.
        forward: the nodes that the program computes.
        order: the position of each node.
    """
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.target not in _COMPARES or node in forward:
            continue
        pair = [storage_root(each) for each in node.all_input_nodes]
        if len(pair) != 2 or not all(each.meta["val"].is_floating_point() for each in pair):
            continue
        first, second = sorted(pair, key=order.__getitem__)
        if _depends(second, first, order):
            found |= {each for one in pair for each in _of_forward(one, forward)}
    return found


def _depends(node: fx.Node, other: fx.Node, order: Mapping[fx.Node, int]) -> bool:
    """Whether a node is computed from another, which comes before it."""
    waiting, seen = [node], {node}
    while waiting:
        here = waiting.pop()
        if here is other:
            return True
        new = {n for n in here.all_input_nodes if order[n] >= order[other]} - seen
        seen |= new
        waiting += new
    return False


def _of_forward(node: fx.Node, forward: Set[fx.Node]) -> Iterator[fx.Node]:
    """The forward's values that a value of the backward is computed from, or is."""
    waiting, seen = [node], {node}
    while waiting:
        here = storage_root(waiting.pop())
        if here in forward:
            yield here
            continue
        new = set(here.all_input_nodes) - seen
        seen |= new
        waiting += new
