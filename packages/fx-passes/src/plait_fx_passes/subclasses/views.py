"""Outputs that are views of the caller's wrappers: made outside of the flat program.

What a view of a wrapper is to autograd, torch decides where the operator is called on the wrapper.
So the few nodes between an argument and the output are run again, on the caller's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx


def replays(gm: fx.GraphModule, outputs: list[Any]) -> dict[int, tuple[int, Callable[..., Any]]]:
    """For outputs that come from one argument by operators that take no other tensor: the
    argument's number, and what makes the output of it."""
    if any(node.target is torch._C._set_grad_enabled for node in gm.graph.nodes):
        return {}  # whether views need gradients depends on where they are taken
    placeholders = {n: i for i, n in enumerate(gm.graph.find_nodes(op="placeholder"))}
    found: dict[int, tuple[int, Callable[..., Any]]] = {}
    for number, node in enumerate(outputs):
        chain: list[fx.Node] = []
        while isinstance(node, fx.Node) and node not in placeholders:
            chain.insert(0, node)
            inputs = node.all_input_nodes
            node = inputs[0] if len(inputs) == 1 and node.op.startswith("call") else None
        if isinstance(node, fx.Node) and chain:
            found[number] = placeholders[node], _module(gm, node, chain)
    return found


def _module(gm: fx.GraphModule, start: fx.Node, chain: list[fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    made = {start: graph.placeholder("base")}
    for node in chain:
        made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(made[chain[-1]])
    return fx.GraphModule(gm, graph)
