"""Parts of a flat graph, to look at what is inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument

from plait_fx_passes.aliasing import is_view
from plait_fx_passes.aten_graph import AtenGraph, Computed, UserInput, copy_graph


def makes_own_tensor(node: fx.Node) -> bool:
    """Whether a node computes one tensor in memory of its own, which a graph may return."""
    computes = isinstance(node.target, OpOverload) and not is_view(node)
    return computes and isinstance(node.meta.get("val"), torch.Tensor)


def with_results(graph: AtenGraph, nodes: Sequence[fx.Node]) -> AtenGraph:
    """The flat graph that computes ``nodes`` of another from the same inputs.

    Args:
        graph: not changed.
        nodes: of which :func:`makes_own_tensor` holds, so that results share no memory.
    """
    made = copy_graph(graph.graph)
    by_name = {node.name: node for node in made.nodes}
    made.erase_node(next(iter(reversed(made.nodes))))
    made.output(cast(Argument, tuple(by_name[node.name] for node in nodes)))
    made.eliminate_dead_code()
    count = len(graph.placeholders)
    return AtenGraph(
        graph=made,
        inputs=tuple(UserInput(index) for index in range(count)),
        outputs=tuple(Computed(index) for index in range(len(nodes))),
    )
