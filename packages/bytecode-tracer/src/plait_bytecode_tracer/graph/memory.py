"""Which nodes of the graph meet in one memory, and which inputs: found once for each node."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.outside.graph_inputs import GraphInput
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Touch:
    """A node that is given a tensor in a memory, or gives one."""

    node: fx.Node
    takes: bool
    """Whether one of its operands is there."""
    gives: bool
    """Whether its result is."""
    is_first: bool
    """Whether its first argument is."""
    places: tuple[int, ...]
    """Which tensors are that make up its first argument, where that is a list."""


@dataclass(slots=True)
class Memory:
    """The nodes by the memory of their tensors, and the inputs by their nodes.

    It grows with the graph: each look-up takes in what has come since the last one. So what the
    look-ups cost together is linear in the graph and its operands. Nodes stay under the memory
    that their tensors had then; the tracer points none to another.
    """

    touches: dict[int, list[Touch]] = field(default_factory=dict)
    inputs: dict[fx.Node, GraphInput] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)
    """How many tensors of the call are in a memory of theirs."""
    known: set[fx.Node] = field(default_factory=set)
    constants: dict[fx.Node, torch.Tensor] = field(default_factory=dict)
    """What nodes give that are the same in every call, as they were made."""

    def clear(self) -> None:
        """Let go of the nodes and of the call's tensors."""
        for part in (self.touches, self.inputs, self.shared, self.known, self.constants):
            part.clear()

    def touching(self, graph: fx.Graph, storage: int) -> list[Touch]:
        """What is in this memory, in the graph's order."""
        self._take_nodes(graph)
        return [each for each in self.touches.get(storage, ()) if not each.node._erased]

    def input_of(self, inputs: list[GraphInput], node: fx.Node) -> GraphInput:
        """The input of the graph that a placeholder stands for."""
        self._take_inputs(inputs)
        return self.inputs[node]

    def is_shared(self, inputs: list[GraphInput], real: torch.Tensor) -> bool:
        """Whether other inputs are in the memory of an input."""
        self._take_inputs(inputs)
        return self.shared[storage_of(real)] > 1

    def _take_nodes(self, graph: fx.Graph) -> None:
        new: list[fx.Node] = []
        for node in reversed(graph.nodes):
            if node in self.known:
                break
            new.append(node)
        self.known.update(new)
        for node in reversed(new):
            for storage, touch in _touches(node).items():
                self.touches.setdefault(storage, []).append(touch)

    def _take_inputs(self, inputs: list[GraphInput]) -> None:
        for each in inputs[len(self.inputs) :]:
            self.inputs[each.node] = each
            if isinstance(each.node.meta["val"], torch.Tensor):
                storage = storage_of(each.real)
                self.shared[storage] = self.shared.get(storage, 0) + 1


def storage_of(tensor: torch.Tensor) -> int:
    """What tells the memory of a tensor from others; -1 for one that is not strided."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else -1


def _touches(node: fx.Node) -> dict[int, Touch]:
    """What a node is to each memory that it touches."""
    own, first = _storage(node), node.args[0] if node.args else None
    places: dict[int | None, list[int]] = {}
    for place, item in enumerate(first if isinstance(first, list | tuple) else ()):
        places.setdefault(_storage(item), []).append(place)
    taken = dict.fromkeys(map(_storage, node.all_input_nodes))
    is_in = _storage(first)
    return {
        each: Touch(node, each in taken, each == own, each == is_in, tuple(places.get(each, ())))
        for each in (own, *taken)
        if each is not None and each >= 0
    }


def _storage(value: Any) -> int | None:
    tensor = value.meta.get("val") if isinstance(value, fx.Node) else None
    return storage_of(tensor) if isinstance(tensor, torch.Tensor) else None
