"""What one graph computes that another has computed already, from the same inputs.

Gradients that are differentiated are a program that begins with the forward. Of that, what was
saved for the backward need not be computed again: its nodes are found by what they compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import fx

from plait_fx_passes.aliasing import storage_root
from plait_fx_passes.aten_graph import copy_graph
from plait_fx_passes.layouts import same_strides
from plait_fx_passes.training.joint_graph import JointGraph, is_random
from plait_utils import dataclass

_Key: TypeAlias = "tuple[object, ...]"

COMPUTED_FROM = "computed_from"
"""In a placeholder's metadata: the placeholders that what it stands for was computed from."""


@dataclass(frozen=True, slots=True)
class Known:
    """Values of another graph that a program is given, which computes them from its inputs.

    ``inputs`` has, for placeholders of the program, those of the graph that they get the values of;
    ``given`` the nodes of the graph whose values placeholders of the program hold.
    """

    inputs: Mapping[int, fx.Node]
    given: Mapping[int, fx.Node]

    def used_in(self, joint: JointGraph) -> JointGraph:
        """The joint graph of the program, with placeholders in the place of what they hold."""
        graph = copy_graph(joint.graph)
        placeholders = list(graph.find_nodes(op="placeholder"))
        numbers = _Numbers()
        for place, node in self.inputs.items():
            numbers.equate(placeholders[place], node)
        held: dict[int, fx.Node] = {}
        for place, node in self.given.items():
            held.setdefault(numbers.of(node), placeholders[place])
            numbers.equate(placeholders[place], node)
        output = next(iter(reversed(graph.nodes)))
        shown = set(map(storage_root, output.all_input_nodes))  # no result shares their memory
        for node in graph.nodes:
            if node.op != "call_function" or node in shown:
                continue
            holder = held.get(numbers.of(node))
            if holder is not None and is_alike(holder, node):
                holder.meta[COMPUTED_FROM] = _read_by(node)
                node.replace_all_uses_with(holder)
        return joint.replace_graph(graph)


class _Numbers:
    """Numbers for nodes of several graphs, equal where they compute the same from the same."""

    def __init__(self) -> None:
        self._numbers: dict[fx.Node, int] = {}
        self._interned: dict[_Key, int] = {}

    def equate(self, first: fx.Node, second: fx.Node) -> None:
        """Two placeholders hold the same."""
        self._numbers[first] = self.of(second)

    def of(self, node: fx.Node) -> int:
        """The number of a node."""
        waiting = [node]
        while waiting:
            last = waiting[-1]
            missing = [each for each in last.all_input_nodes if each not in self._numbers]
            if last not in self._numbers and missing:
                waiting += missing
                continue
            waiting.pop()
            if last not in self._numbers:
                unique = last.op != "call_function" or is_random(last)
                key = (last,) if unique else (last.target, *map(self._key, _arguments(last)))
                self._numbers[last] = self._interned.setdefault(key, len(self._interned))
        return self._numbers[node]

    def _key(self, argument: object) -> object:
        if isinstance(argument, fx.Node):
            return fx.Node, self._numbers[argument]
        if isinstance(argument, (list, tuple)):
            return tuple(map(self._key, argument))
        return type(argument), repr(argument)


def _arguments(node: fx.Node) -> tuple[object, ...]:
    return (*node.args, *sorted(node.kwargs.items()))


def is_alike(first: fx.Node, second: fx.Node) -> bool:
    """Whether the values of two nodes have one geometry, dtype and device."""
    one, other = first.meta["val"], second.meta["val"]
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return (
        one.dtype == other.dtype
        and one.device == other.device
        and one.layout == other.layout
        and same_strides(one, other)
    )


def _read_by(node: fx.Node) -> tuple[fx.Node, ...]:
    """The placeholders that a node is computed from."""
    waiting, seen = [node], {node}
    while waiting:
        for each in waiting.pop().all_input_nodes:
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    own = [each for each in seen if each.op == "placeholder"]
    return tuple(
        dict.fromkeys(n for each in own for n in (each, *each.meta.get(COMPUTED_FROM, ())))
    )
