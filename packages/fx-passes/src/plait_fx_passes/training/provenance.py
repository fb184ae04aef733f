"""Where the values of a program come from, noted while it runs on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

import torch
from torch import fx
from torch.utils._pytree import tree_leaves


class Provenance:
    """What the nodes of a program returned, and after which of them the memory of tensors had been
    written to how often."""

    def __init__(self) -> None:
        self.values: Mapping[fx.Node, object] = {}
        self._first: dict[tuple[int, int], fx.Node] = {}
        self._order: dict[fx.Node, int] = {}
        self._writes: dict[fx.Node, list[int]] = {}

    def look(self, node: fx.Node, values: Mapping[fx.Node, object]) -> None:
        """Note what a node has returned, and what it has written to."""
        self.values = values  # keeps all of them, so that identities last
        self._order[node] = len(self._order)
        for each in (node, *node.all_input_nodes):
            value = values[each]
            if not _has_version(value):
                continue
            now = _memory_now(value)
            if self._first.setdefault(now, node) is node and now[1]:
                self._writes.setdefault(node, []).append(now[0])

    def last(self, tensor: torch.Tensor, nodes: Sequence[fx.Node]) -> fx.Node | None:
        """The node after which it was as it is, of those that returned it, or wrote to its memory;
        None where that cannot be told."""
        written = self._first.get(_memory_now(tensor)) if _has_version(tensor) else None
        if written is None or not nodes:
            return None
        return max(written, nodes[0], key=self._order.__getitem__)

    def by_tensor(self) -> dict[int, list[fx.Node]]:
        """The nodes that returned each tensor, by its identity, alone or in a container."""
        found: dict[int, list[fx.Node]] = {}
        for node, value in self.values.items():
            for each in {id(leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)}:
                found.setdefault(each, []).append(node)
        return found

    def computed_from(self, tensors: Sequence[Sequence[fx.Node]]) -> Callable[[object], int]:
        """What tells of a value that the program computed, from which tensors, as bits of their
        numbers, nodes computed it that follow those which returned these."""
        own: dict[fx.Node, int] = {}
        for number, nodes in enumerate(tensors):
            for node in nodes:
                own[node] = own.get(node, 0) | 1 << number
        bits: dict[fx.Node, int] = {}
        values: dict[int, int] = {}
        memory: dict[int, int] = {}
        for node in self._order:
            found = 0
            for each in node.all_input_nodes:
                found |= bits[each] | own.get(each, 0)
                value = self.values[each]
                if memory and _has_version(value):
                    found |= memory.get(_memory_now(value)[0], 0)
            bits[node] = found
            if found:
                for key in self._writes.get(node, ()):
                    memory[key] = memory.get(key, 0) | found
                for leaf in tree_leaves(self.values[node]):
                    values[id(leaf)] = values.get(id(leaf), 0) | found

        def told(value: object) -> int:
            written = memory.get(_memory_now(value)[0], 0) if _has_version(value) else 0
            return values.get(id(value), 0) | written

        return told


def _has_version(value: object) -> TypeGuard[torch.Tensor]:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return not value.is_inference()


def _memory_now(tensor: torch.Tensor) -> tuple[int, int]:
    """The memory of a tensor, and how often autograd knows it to have been written to."""
    return tensor.untyped_storage()._cdata, tensor._version
