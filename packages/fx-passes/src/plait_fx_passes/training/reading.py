"""The arguments that a compiled program reads.

Gradients that are differentiated may not depend on what an input was: autograd has saved something
else in its place. Such an input may have been changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import torch
from torch import fx

from plait_fx_passes.aten_graph import AtenGraph, UserInput

aten = torch.ops.aten
Run = TypeVar("Run", bound="Callable[..., object]")

_READS = "reads"


_ASK_GEOMETRY = frozenset(
    {
        *(aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default),
        *(aten.full_like.default, aten.rand_like.default, aten.randn_like.default),
        *(aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default),
        *(aten.new_full.default, aten.new_empty_strided.default, aten.sym_size.int),
    }
)
"""Operators that read no element of what they are given."""


def ancestors(nodes: Iterable[fx.Node], *, values: bool = False) -> set[fx.Node]:
    """The nodes and what they are computed from; with ``values``, from whose elements."""
    waiting = list(nodes)
    found: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            if not (values and node.target in _ASK_GEOMETRY):
                waiting += node.all_input_nodes
    return found


def arguments_read(graph: AtenGraph) -> frozenset[int]:
    """The program's arguments on whose values results of the graph depend."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    read = ancestors(graph.results, values=True)
    return frozenset(
        source.index
        for node, source in zip(placeholders, graph.inputs, strict=False)
        if isinstance(source, UserInput) and node in read
    )


def note_reads(run: Run, graph: AtenGraph) -> Run:
    """``run``, a function of Python's, with a note of which arguments matter: those that the
    graph reads, which computes its results and their gradients."""
    setattr(run, _READS, arguments_read(graph))
    return run


def reads_of(run: Callable[..., object], count: int) -> Collection[int]:
    """Which of ``count`` arguments matter to what was noted so; all of them to others."""
    found: Collection[int] = getattr(run, _READS, range(count))
    return found
