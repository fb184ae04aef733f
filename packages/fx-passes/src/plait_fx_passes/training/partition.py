"""Splits a joint graph into a forward and a backward, and says what passes between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import fx
from torch.fx.node import Argument

from plait_fx_passes.aliasing import storage_root
from plait_fx_passes.aten_graph import AtenGraph, Computed, UserInput
from plait_fx_passes.training.choose import (
    Choice,
    PartitionCosts,
    Values,
    ancestors,
    whole_results,
)
from plait_fx_passes.training.joint_graph import JointGraph

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class SavedInput:
    """The backward gets the tensor that was fed to placeholder ``input`` of the forward."""

    input: int


@dataclass(frozen=True, slots=True)
class SavedResult:
    """The backward gets result ``result`` of the forward."""

    result: int


Saved: TypeAlias = SavedInput | SavedResult


@dataclass(frozen=True, slots=True)
class Partition:
    """A joint graph as two graphs.

    ``forward`` computes the program's results and, after them, what only the backward needs;
    ``backward`` takes the ``saved`` tensors in order, then the tangents, and computes the
    gradients. Both are flat programs: nothing is written back, outputs are their results.

    ``saved_bytes`` counts the memory that is held for the backward alone, without what the caller
    holds anyway; ``operations`` estimates what the backward computes that the forward did too.
    """

    forward: AtenGraph
    backward: AtenGraph
    saved: tuple[Saved, ...]
    saved_bytes: int
    operations: int


def partition(
    joint: JointGraph, budget: float | None = None, *, costs: PartitionCosts | None = None
) -> Partition:
    """Split a joint graph so that little is saved between forward and backward.

    What the forward computes is saved for the backward, or computed again there from other values.
    Random numbers, and operators that are not torch's own, are never run again. Memory that the
    program or its caller may write to is saved only where the backward itself uses it, so that
    autograd notices as it does in eager; elsewhere a copy is.

    Args:
        joint: forward and backward in one graph.
        budget: None weighs bytes against operations, and computes again only what fused loops
            compute. A number from 0 to 1 bounds the saved bytes: 1 saves all that the backward
            uses (:func:`keep_all`), 0 as few bytes as possible, whatever has to be computed again,
            and any number between them at most that part of the difference. Less never saves more.
        costs: what a byte is worth, without a budget.

    Raises:
        ValueError: the budget is not between 0 and 1.
    """
    values = Values(joint)
    if budget is None:
        return _split(joint, values, values.balanced(costs or PartitionCosts()))
    if not 0 <= budget <= 1:
        raise ValueError(f"a memory budget is a number from 0 to 1, not {budget!r}")
    return _split(joint, values, values.within(budget))


def keep_all(joint: JointGraph) -> Partition:
    """Split a joint graph so that nothing is computed twice but views.

    What the program does not compute for its own results is computed in the backward, but for
    random numbers, which are drawn in the program's order.
    """
    values = Values(joint)
    return _split(joint, values, values.kept_whole())


def _split(joint: JointGraph, values: Values, choice: Choice) -> Partition:
    """The two graphs, where the backward starts from what was chosen."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    positions = {node: index for index, node in enumerate(placeholders)}
    results = list(joint.program.results[: joint.result_count])
    whole = whole_results(joint)
    given = set(map(storage_root, results))
    saved: list[Saved] = []
    extra: list[fx.Node] = []
    copied: set[fx.Node] = set()
    sources: dict[fx.Node, fx.Node] = {}
    for node in choice.saved:
        sources[node] = node
        if node in positions and node in values.uncopied:
            saved.append(SavedInput(positions[node]))
        elif node in whole and (node in values.uncopied or node not in values.held):
            saved.append(SavedResult(whole[node]))
            sources[node] = results[whole[node]]
        else:
            saved.append(SavedResult(len(results) + len(extra)))
            extra.append(node)
            if node in positions or node in given:
                copied.add(node)
    forward = Extract({node: node for node in placeholders[: joint.input_count]})
    outputs = [*results, *extra]
    forward.add(values.sorted(ancestors([*outputs, *values.random])))
    backward = Extract(sources | {node: node for node in placeholders[joint.input_count :]})
    backward.add_late(values)
    held = {node for node in values.gradients if storage_root(node) in sources}
    return Partition(
        _flat(forward.finish(outputs, copied)),
        _flat(backward.finish(values.gradients, held)),
        tuple(saved),
        choice.saved_bytes,
        choice.operations,
    )


class Extract:
    """A graph of its own, made from nodes of another.

    ``sources`` holds what its placeholders are, each with the node of which they are to give the
    value: itself, or as many elements of it in another shape.
    """

    def __init__(self, sources: Mapping[fx.Node, fx.Node]) -> None:
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        for node, source in sources.items():
            self._copies[node] = self._graph.placeholder(node.name)
            self._copies[node].meta = dict(source.meta)
        for node, source in sources.items():
            if node is not source:
                shape = list(node.meta["val"].shape)
                made = self._graph.call_function(aten.view.default, (self._copies[node], shape))
                made.meta = dict(node.meta)
                self._copies[node] = made

    def add(self, nodes: Iterable[fx.Node]) -> None:
        """Copy nodes whose operands are there; placeholders and what is there are left out."""
        for node in nodes:
            if node not in self._copies and node.op == "call_function":
                self._copies[node] = self._graph.node_copy(node, self._copies.__getitem__)

    def add_late(self, values: Values) -> None:
        """Copy all that gradients need, and what the forward computed too where it is first used:
        so its memory is used for a short time only."""
        body = self._missing(values.gradients)
        for node in values.sorted(body):
            if node in values.late:
                self.add(values.sorted(self._missing([node])))
        self.add(values.sorted(self._missing(values.gradients)))

    def _missing(self, nodes: Sequence[fx.Node]) -> set[fx.Node]:
        """What is to be copied before these nodes are there."""
        found: set[fx.Node] = set()
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node not in found and node not in self._copies:
                found.add(node)
                waiting += node.all_input_nodes
        return found

    def finish(self, results: Sequence[fx.Node], copied: set[fx.Node]) -> fx.Graph:
        """The graph, which returns ``results``; those in ``copied`` as memory of their own."""
        made = [self._copy(self._copies[n]) if n in copied else self._copies[n] for n in results]
        self._graph.output(cast(Argument, tuple(made)))
        return self._graph

    def _copy(self, node: fx.Node) -> fx.Node:
        made = self._graph.call_function(aten.clone.default, (node,))
        made.meta = dict(node.meta)
        return made


def _flat(graph: fx.Graph) -> AtenGraph:
    count = len(graph.find_nodes(op="placeholder"))
    output = next(iter(reversed(graph.nodes)))
    return AtenGraph(
        graph=graph,
        inputs=tuple(UserInput(index) for index in range(count)),
        outputs=tuple(Computed(index) for index in range(len(output.args[0]))),
    )
