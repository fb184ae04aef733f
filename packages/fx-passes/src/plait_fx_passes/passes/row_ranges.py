"""Which rows of which tensor a slice or a select takes."""

from __future__ import annotations

import torch
from torch import fx

from plait_utils import dataclass

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Rows:
    """Elements `start` to `stop` of a tensor along a dimension."""

    source: fx.Node
    dim: int
    start: int
    stop: int

    def joined(self, other: Rows) -> Rows | None:
        """These and those right behind them."""
        if (self.source, self.dim, self.stop) != (other.source, other.dim, other.start):
            return None
        return Rows(self.source, self.dim, self.start, other.stop)

    @property
    def are_all(self) -> bool:
        """Whether they are the whole tensor."""
        size = self.source.meta["val"].shape[self.dim]
        return type(size) is int and (self.start, self.stop) == (0, size)


def rows_of(node: fx.Node) -> Rows | None:
    """What a slice by steps of one, or a select, takes; None where that is not known in numbers."""
    if node.target not in (aten.slice.Tensor, aten.select.int) or node.kwargs:
        return None
    source, dim, start, *rest = (*node.args, 0, None)[: max(len(node.args), 3)]
    if not isinstance(source, fx.Node) or type(dim) is not int:
        return None
    value = source.meta["val"]
    dim %= value.dim()
    size = value.shape[dim]
    start = 0 if start is None else start
    if type(size) is not int or type(start) is not int or (len(rest) > 1 and rest[1] != 1):
        return None
    start = min(max(start + size if start < 0 else start, 0), size)
    length = 1 if node.target is aten.select.int else node.meta["val"].shape[dim]
    return Rows(source, dim, start, start + length) if type(length) is int else None


def all_rows(node: fx.Node, dim: int) -> Rows | None:
    """All of a tensor; None where its size is not known in numbers."""
    size = node.meta["val"].shape[dim]
    return Rows(node, dim, 0, size) if type(size) is int else None
