"""Graphs with symbolic sizes: the sizes are arguments of nodes as they are, as numbers would be.

What surrounds such a graph must not depend on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.errors import AtenTraceError


class OpenGraph(fx.Graph):
    """A graph whose nodes take symbolic sizes; torch's own warns of each."""

    def create_node(
        self, op: str, target: Any, args: Any = None, kwargs: Any = None, *rest: Any, **more: Any
    ) -> fx.Node:
        node = super().create_node(op, target, None, None, *rest, **more)
        node.args, node.kwargs = args or (), kwargs or {}
        return node


def refuse_open_surroundings(graph: AtenGraph) -> None:
    """Check that what is done around the graph is the same for all sizes.

    Views that are handed out are rebuilt from numbers, and numbers that the program returns are
    part of what it is recorded as.

    Raises:
        AtenTraceError: a symbolic size is among them.
    """
    surroundings = (graph.outputs, graph.metadata_mutations, graph.inputs)
    if any(isinstance(leaf, torch.SymInt) for leaf in _leaves(surroundings)):
        raise AtenTraceError("it returns a view or a number that depends on its sizes")


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _leaves(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name))
    else:
        yield value
