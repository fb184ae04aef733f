"""Which nodes of a graph follow from its frozen inputs alone."""

from __future__ import annotations

from math import prod

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument

from plait_fx_passes.aliasing import is_view, storage_root
from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.layouts import has_static_sizes
from plait_fx_passes.passes.cleanup import has_effects

_SMALL = 4096
"""Elements by which a value may exceed what it is computed from, and be held nevertheless."""


class Constants:
    """The nodes that have one value while the frozen inputs have theirs, and use at least one.

    Not those whose memory a caller gets, which may write to it; nor those that take much more
    memory than the inputs they are computed from.
    """

    def __init__(self, graph: AtenGraph) -> None:
        frozen = {graph.placeholders[place] for place in graph.frozen}
        self._returned = {storage_root(node) for node in graph.results}
        self._memory: dict[fx.Node, int] = {}
        """The elements in the memory of each constant, and of each node without any input."""
        self._frozen: set[fx.Node] = set()
        if not frozen:
            return
        for node in graph.graph.nodes:
            if node in frozen:
                self._frozen.add(node)
                self._memory[node] = _elements(node)
            elif node.op == "call_function":
                self.add(node)

    def __contains__(self, node: object) -> bool:
        return node in self._frozen

    def is_fixed(self, node: fx.Node) -> bool:
        """Whether the node is one of the constants, or uses no input at all."""
        return node in self._memory

    def add(self, node: fx.Node) -> None:
        """Take in a node whose arguments were taken in, if it is constant."""
        used = node.all_input_nodes
        if node in self._returned or not all(each in self._memory for each in used):
            return
        if not isinstance(node.target, OpOverload) and not used:
            return
        if has_effects(node) or not _is_static(node):
            return
        memory = _elements(node)
        below = sum(self._memory[each] for each in used)
        if is_view(node):
            memory = min(memory, below)
        elif used and memory > below + _SMALL:
            return
        self._memory[node] = memory
        if any(each in self._frozen for each in used):
            self._frozen.add(node)


def _elements(node: fx.Node) -> int:
    return sum(prod(each.shape) for each in _tensors(node))


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else [value]
    return [each for each in parts if isinstance(each, torch.Tensor)]


def _is_static(node: fx.Node) -> bool:
    """Whether the call has tensors as results, and no symbolic size anywhere."""
    found = _tensors(node)
    if not found or not all(map(has_static_sizes, found)):
        return False
    open_ones = (torch.SymInt, torch.SymFloat, torch.SymBool)
    is_open = False

    def look(each: Argument) -> Argument:
        nonlocal is_open
        is_open |= isinstance(each, open_ones)
        return each

    fx.node.map_aggregate((node.args, node.kwargs), look)
    return not is_open
