"""The backward for some of its tangents: what the others would lead to is not computed.

Autograd does not run nodes that no gradient reaches. Zeros for the missing tangents would be wrong
where a derivative is infinite, and cost what the whole backward costs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import Argument

from plait_fx_passes.aliasing import storage_root
from plait_fx_passes.aten_graph import AtenGraph, Computed, UserInput
from plait_fx_passes.layouts import memory_order, same_strides
from plait_fx_passes.open_sizes import telling_sizes
from plait_fx_passes.verifier import equal_values, recompute
from plait_utils import dataclass
from plait_utils.collectives import is_collective

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Pruned:
    """A part of a backward: which of its placeholders it takes, which gradients it computes."""

    graph: AtenGraph
    placeholders: tuple[int, ...]
    gradients: tuple[int, ...]


def prune(
    backward: AtenGraph, saved: int, absent: Collection[int], wanted: Collection[int]
) -> Pruned:
    """The part of ``backward`` that is left without some of its tangents.

    Args:
        backward: a flat graph of saved tensors, then tangents; not changed.
        saved: how many of its placeholders are saved tensors.
        absent: the placeholders of tangents that are not given.
        wanted: the positions of the gradients to compute.
    """
    graph = type(backward.graph)()
    writer = _Writer(graph, backward)
    nodes = backward.placeholders
    writer.absent = {nodes[index] for index in absent}
    writer.follows = set(nodes[saved:])
    for index, node in enumerate(nodes):
        if index not in absent:
            writer.copies[node] = graph.placeholder(node.name)
            writer.copies[node].meta = dict(node.meta)
    unwanted = _unwanted(backward, wanted)
    for node in backward.graph.nodes:
        if node.op == "call_function" and node not in unwanted:
            writer.add(node)
    results = [(n, node) for n, node in enumerate(backward.results) if n in wanted]
    last = writer.results([node for _, node in results])
    graph.output(cast(Argument, tuple(last)))
    graph.eliminate_dead_code()
    taken = _drop_unused(graph)
    kept = [index for index in range(len(nodes)) if index not in absent]
    flat = AtenGraph(
        graph=graph,
        inputs=tuple(UserInput(index) for index in range(len(taken))),
        outputs=tuple(Computed(index) for index in range(len(last))),
    )
    return Pruned(flat, tuple(kept[place] for place in taken), tuple(n for n, _ in results))


def _unwanted(backward: AtenGraph, wanted: Collection[int]) -> set[fx.Node]:
    """What only leads to gradients that nobody wants, if collectives are among that: autograd calls
    none of these, and other processes may not either. One that leads to no gradient at all was
    called for what it does."""
    if len(set(wanted)) == len(backward.results):
        return set()
    if not any(is_collective(node.target) for node in backward.graph.nodes):
        return set()
    results = list(enumerate(backward.results))
    leading = _ancestors(node for _, node in results)
    return leading - _ancestors(node for n, node in results if n in wanted)


def _ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes, and what they are computed from."""
    waiting = list(nodes)
    found = set(waiting)
    while waiting:
        for each in waiting.pop().all_input_nodes:
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


class _Writer:
    """Copies the nodes that are left."""

    def __init__(self, graph: fx.Graph, backward: AtenGraph) -> None:
        self.graph = graph
        self.copies: dict[fx.Node, fx.Node] = {}
        self.absent: set[fx.Node] = set()
        self.follows: set[fx.Node] = set()
        self._mode = cast(FakeTensorMode, backward.fake_mode)
        self._changed: set[fx.Node] = set()

    def add(self, node: fx.Node) -> None:
        """Copy a call; it is absent if all that it has of tangents is."""
        given = [each for each in node.all_input_nodes if each in self.follows]
        if given:
            self.follows.add(node)
            if all(each in self.absent for each in given):
                self.absent.add(node)
                return
        only = self._only_summand(node)
        if only is not None:
            self.copies[node] = self.copies[only]
            return
        made = self.graph.node_copy(node, self.copy)
        self.copies[node] = made
        if any(each in self._changed for each in made.all_input_nodes):
            fresh = recompute(self._mode, made)
            if not equal_values(fresh, made.meta["val"]):
                made.meta = {**made.meta, "val": fresh}
                self._changed.add(made)

    def copy(self, node: fx.Node) -> fx.Node:
        """The node's copy; zeros for one that is absent."""
        if node not in self.copies:
            self.copies[node] = self._zeros(node)
        return self.copies[node]

    def results(self, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """Copies of the results, none of which shares memory with another or with an input."""
        taken: set[fx.Node] = set()
        found = []
        for node in nodes:
            made = self.copy(node)
            root = storage_root(made)
            if root.op == "placeholder" or root in taken:
                value = made.meta["val"]
                made = self.graph.call_function(aten.clone.default, (made,))
                made.meta = {"val": value}
            taken.add(root)
            found.append(made)
        return found

    def _only_summand(self, node: fx.Node) -> fx.Node | None:
        """What a sum is, one side of which is absent."""
        if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
            return None
        here = [each for each in node.all_input_nodes if each not in self.absent]
        if len(here) != 1 or len(node.all_input_nodes) != 2 or here[0] not in self.copies:
            return None
        mine, whole = self.copies[here[0]].meta["val"], node.meta["val"]
        alike = mine.dtype == whole.dtype and mine.device == whole.device
        return here[0] if alike and same_strides(mine, whole) else None

    def _zeros(self, node: fx.Node) -> fx.Node:
        value = node.meta["val"]
        order = memory_order(value)
        size = [value.shape[dim] for dim in order]
        with self._mode:
            fake = torch.full(size, 0, dtype=value.dtype, device=value.device)
        options = {"dtype": value.dtype, "device": value.device}
        made = self.graph.call_function(aten.full.default, (size, 0), options)
        made.meta = {"val": fake}
        back = sorted(range(len(order)), key=order.__getitem__)
        if back != list(range(len(order))):
            turned = self.graph.call_function(aten.permute.default, (made, back))
            turned.meta = {"val": fake.permute(back)}
            made = turned
        if not equal_values(made.meta["val"], value):
            self._changed.add(made)
        return made


def _drop_unused(graph: fx.Graph) -> list[int]:
    """Erase the placeholders that nothing uses, not even their sizes; the positions of the
    others."""
    kept, telling = [], telling_sizes(graph)
    for index, node in enumerate(graph.find_nodes(op="placeholder")):
        if node.users or node in telling:
            kept.append(index)
        else:
            graph.erase_node(node)
    return kept
