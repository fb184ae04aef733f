"""Functions of the program's own in a joint graph: what their backwards are given.

The backward is recorded with a gradient for each result. A function that sees which of its
gradients are None may do something else where only some are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from types import FunctionType
from typing import Any

import torch
from torch import fx
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, get_gradient_edge

_LOOKED_INTO = ("torch.", "plait_")
"""Where functions come from that call none of the program's own, unless a node says so."""


def tells_gradients_apart(gm: fx.GraphModule, results: Sequence[torch.Tensor]) -> bool:
    """Whether a backward in the program may depend on which gradients are given.

    Whoever traced the program may have said so of a node (``meta["tells_gradients_apart"]``). Of
    functions that nobody has looked into, all with several results may.
    """
    if any(node.meta.get("tells_gradients_apart") for node in gm.graph.nodes):
        return True
    if not any(map(_is_unknown, gm.graph.nodes)):
        return False
    return any(map(_has_several_gradients, nodes_behind(results)))


def _is_unknown(node: fx.Node) -> bool:
    """Whether a node may call a function that its graph does not show."""
    if "tells_gradients_apart" in node.meta:
        return False
    if isinstance(node.target, FunctionType):
        return not str(node.target.__module__).startswith(_LOOKED_INTO)
    return node.op == "call_module"


def _has_several_gradients(node: Any) -> bool:
    return isinstance(node, BackwardCFunction) and len(node._input_metadata) > 1  # type: ignore[attr-defined]  # of nodes


def nodes_behind(results: Iterable[torch.Tensor], seen: Set[Node] = frozenset()) -> set[Node]:
    """All nodes of autograd that the gradients of results go through, up to those seen before."""
    waiting = [get_gradient_edge(each).node for each in results if each.grad_fn is not None]
    found: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in found and node not in seen:
            found.add(node)
            waiting += [below for below, _ in node.next_functions if below is not None]
    return found
