"""Splits a joint graph into a forward and a backward, and says what passes between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import Argument

from plait_fx_passes.aliasing import storage_root
from plait_fx_passes.aten_graph import AtenGraph, Computed, UserInput
from plait_fx_passes.open_sizes import missing_sizes
from plait_fx_passes.record.fakes import fake_result
from plait_fx_passes.record.guards import below_autograd
from plait_fx_passes.record.numbers import NumberNode, is_number
from plait_fx_passes.training.choose import (
    Choice,
    PartitionCosts,
    Values,
)
from plait_fx_passes.training.held import axes_in
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.places import Saved, SavedInput, SavedResult, SavedSize
from plait_fx_passes.training.saved import Held, SavedTensor, saved_tensor
from plait_utils import dataclass

aten = torch.ops.aten
_READ = aten._local_scalar_dense.default


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
    kept: tuple[SavedTensor, ...]
    """What each of ``saved`` is, and why it is saved."""
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
    given = set(map(storage_root, results))
    saved: list[Saved] = []
    kind = type(joint.graph)
    forward = Extract(placeholders[: joint.input_count], kind)
    forward.add_needed(values, [*results, *values.random, *values.checks])
    returned = [forward[node] for node in results]
    backward = Extract((), kind)
    for node in choice.saved:
        if node in positions and node in values.uncopied:
            saved.append(SavedInput(positions[node]))
            backward.take(node)
            continue
        if node in values.whole and (node in values.uncopied or node not in values.held):
            saved.append(SavedResult(values.whole[node]))
            backward.take(node, results[values.whole[node]])
            continue
        saved.append(SavedResult(len(returned)))
        forward.add_needed(values, [node])
        if is_number(node.meta["val"]):
            returned.append(forward.hold(node))
        elif node in values.masks:
            returned.append(forward.call(aten._to_copy.default, node, dtype=torch.bool))
        elif node in positions or node in given:
            returned.append(forward.call(aten.clone.default, node))
        else:
            returned.append(forward[node])
        backward.take(node, returned[-1])
    for node in placeholders[joint.input_count :]:
        backward.take(node)
    backward.restore()
    backward.add_late(values)
    kept = set(choice.saved)
    gradients = [
        backward.call(aten.clone.default, node) if storage_root(node) in kept else backward[node]
        for node in values.gradients
    ]
    graph = backward.finish(gradients)
    for place, dim in missing_sizes(graph, len(saved), placeholders[: joint.input_count]):
        _insert_size(graph, len(saved), placeholders[place].meta["val"], dim)
        saved.append(SavedSize(place, dim))
    later = _flat(graph)
    return Partition(
        _flat(forward.finish(returned)),
        later,
        tuple(saved),
        tuple(_explained(values, choice, later)),
        choice.saved_bytes,
        choice.operations,
    )


def _insert_size(graph: fx.Graph, place: int, tensor: FakeTensor, dim: int) -> None:
    """A placeholder for a size, before the one at a place."""
    with below_autograd(), tensor.fake_mode:
        value = torch.empty((), dtype=torch.bool).expand(tensor.shape[dim])
    following = list(graph.nodes)[place]
    with graph.inserting_before(following):
        graph.placeholder(f"size_{place}").meta = {"val": value}


def _explained(values: Values, choice: Choice, backward: AtenGraph) -> Iterator[SavedTensor]:
    for node, user in zip(choice.saved, backward.placeholders, strict=False):
        held = Held.OWN
        if node in values.uncopied:
            held = Held.INPUT if node.op == "placeholder" else Held.RESULT
        yield saved_tensor(node, held, values.bytes[node] or 0, values.whole_cost(node), user)


class Extract:
    """A graph of its own, made from nodes of another, which index it.

    Nodes that only bring values into the form in which they are passed on have
    ``meta["passed"]``.
    """

    def __init__(self, inputs: Iterable[fx.Node], kind: type[fx.Graph] = fx.Graph) -> None:
        self._graph = kind()
        self._copies: dict[fx.Node, fx.Node] = {}
        self._other: dict[fx.Node, fx.Node] = {}
        for node in inputs:
            self.take(node)

    def __getitem__(self, node: fx.Node) -> fx.Node:
        return self._copies[node]

    def take(self, node: fx.Node, source: fx.Node | None = None) -> None:
        """A placeholder for the node, to which its value is given as that of ``source`` is: in
        another shape or dtype, or a number in a tensor, until :meth:`restore`. A copy has no gaps
        where the value has some."""
        made = self._graph.placeholder(node.name)
        made.meta = dict((source or node).meta)
        self._copies[node] = made
        if source is not None and not _is_alike(source.meta["val"], node.meta["val"]):
            self._other[node] = made

    def restore(self) -> None:
        """Make the values of nodes of those that placeholders hold in another shape or dtype, or as
        a tensor in the place of a number."""
        for node, given in self._other.items():
            value = node.meta["val"]
            if is_number(value):
                self._copies[node] = self._graph.call_function(_READ, (given,))
                self._copies[node].meta = {**node.meta, "passed": True}
                NumberNode.of(self._copies[node])
                continue
            axes = axes_in(given.meta["val"], value)
            if axes:
                made = self._graph.call_function(aten.permute.default, (given, axes))
            elif given.meta["val"].dtype == value.dtype:
                shape = list(value.shape)
                made = self._graph.call_function(aten.view.default, (given, shape))
            else:
                kind = {"dtype": value.dtype}
                made = self._graph.call_function(aten._to_copy.default, (given,), kind)
            made.meta = {**node.meta, "passed": True}
            self._copies[node] = made

    def call(self, func: OpOverload, node: fx.Node, **options: Any) -> fx.Node:
        """The operator on the node."""
        source = self._copies[node]
        made = self._graph.call_function(func, (source,), options)
        with below_autograd():
            value = fake_result(node.meta["val"].fake_mode, func, (node.meta["val"],), options)
        made.meta = {**node.meta, "val": value, "passed": True}
        return made

    def hold(self, number: fx.Node) -> fx.Node:
        """A tensor that holds a number."""
        source = self._copies[number]
        made = self._graph.call_function(
            aten.scalar_tensor.default, (source,), {"dtype": torch.float64}
        )
        mode = next(each.meta["val"] for each in self._copies).fake_mode
        with below_autograd(), mode:
            value = torch.empty((), dtype=torch.float64)
        made.meta = {**number.meta, "val": value, "passed": True}
        return made

    def add(self, nodes: Iterable[fx.Node]) -> None:
        """Copy nodes whose operands are there; placeholders and what is there are left out."""
        for node in nodes:
            if node not in self._copies and node.op == "call_function":
                self._copies[node] = self._graph.node_copy(node, self._copies.__getitem__)

    def add_needed(self, values: Values, nodes: Sequence[fx.Node]) -> None:
        """Copy the nodes, and before them what they are computed from, in the graph's order."""
        self.add(values.sorted(self._missing(nodes)))

    def add_late(self, values: Values) -> None:
        """Copy all that gradients need, and what the forward computed too where it is first used:
        so its memory is used for a short time only."""
        body = self._missing(values.gradients)
        for node in values.sorted(body):
            if node in values.late:
                self.add_needed(values, [node])
        self.add_needed(values, values.gradients)

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

    def finish(self, results: Sequence[fx.Node]) -> fx.Graph:
        """The graph, which returns these nodes of its own."""
        self._graph.output(cast(Argument, tuple(results)))
        return self._graph


def _is_alike(value: torch.Tensor, other: torch.Tensor) -> bool:
    if is_number(value) or is_number(other):
        return False
    if value.dtype != other.dtype or value.shape != other.shape:
        return False
    return axes_in(value, other) in ([], list(range(value.dim())))


def _flat(graph: fx.Graph) -> AtenGraph:
    count = len(graph.find_nodes(op="placeholder"))
    output = next(iter(reversed(graph.nodes)))
    return AtenGraph(
        graph=graph,
        inputs=tuple(UserInput(index) for index in range(count)),
        outputs=tuple(Computed(index) for index in range(len(output.args[0]))),
    )
