"""Which rows of which tensor a slice or a select takes, in numbers or in expressions of open sizes.

Of open sizes nothing is asked, which would fix what is so by chance: what is known is what their
expressions say, for all sizes that a graph is for.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import fx

from plait_fx_passes.layouts import surely_equal
from plait_utils import dataclass

aten = torch.ops.aten

Bound: TypeAlias = int | torch.SymInt


@dataclass(frozen=True, slots=True)
class Rows:
    """Elements `start` to `stop` of a tensor along a dimension."""

    source: fx.Node
    dim: int
    start: Bound
    stop: Bound

    def joined(self, other: Rows) -> Rows | None:
        """These and those right behind them."""
        if (self.source, self.dim) != (other.source, other.dim):
            return None
        if not surely_equal([self.stop], [other.start]):
            return None
        return Rows(self.source, self.dim, self.start, other.stop)

    @property
    def size(self) -> Bound:
        """How many rows the tensor has."""
        found: Bound = self.source.meta["val"].shape[self.dim]
        return found

    @property
    def are_all(self) -> bool:
        """Whether they are the whole tensor."""
        return surely_equal([self.start, self.stop], [0, self.size])

    @property
    def are_takeable(self) -> bool:
        """Whether a slice of them asks nothing of open sizes: to make a tensor of a size that there
        was none of asks whether that is one."""
        return self.are_all or type(plain(self.stop - self.start)) is int

    @property
    def are_numbers(self) -> bool:
        """Whether nothing of them is an open size."""
        return all(type(each) is int for each in (self.start, self.stop, self.size))


def rows_of(node: fx.Node) -> Rows | None:
    """What a slice by steps of one, or a select, takes; None where that is not known."""
    if node.target not in (aten.slice.Tensor, aten.select.int) or node.kwargs:
        return None
    source, dim, start, *rest = (*node.args, 0, None)[: max(len(node.args), 3)]
    if not isinstance(source, fx.Node) or type(dim) is not int:
        return None
    if len(rest) > 1 and (type(rest[1]) is not int or rest[1] != 1):
        return None
    value = source.meta["val"]
    dim %= value.dim()
    first = _first(0 if start is None else start, value.shape[dim])
    if first is None:
        return None
    length = 1 if node.target is aten.select.int else node.meta["val"].shape[dim]
    return Rows(source, dim, first, plain(first + length))


def _first(start: object, size: Bound) -> Bound | None:
    """Where rows begin, counted from the front. From an open place on, or of an open size, only
    where that is no place from the end: one behind the end takes nothing, as the length says."""
    if type(start) is int and type(size) is int:
        return min(max(start + size if start < 0 else start, 0), size)
    if isinstance(start, (int, torch.SymInt)) and at_most(0, start):
        return start
    return None


def all_rows(node: fx.Node, dim: int) -> Rows:
    """All of a tensor."""
    return Rows(node, dim, 0, node.meta["val"].shape[dim])


def plain(bound: Bound) -> Bound:
    """A bound as a number, where its expression is one."""
    if isinstance(bound, torch.SymInt) and bound.node.expr.is_Integer:
        return int(bound.node.expr)
    return bound


def at_most(left: Bound, right: Bound) -> bool:
    """Whether one bound is never above another, as their expressions say."""
    if type(left) is int and type(right) is int:
        return left <= right
    if surely_equal([left], [right]):
        return True
    between = right - left
    if isinstance(between, torch.SymInt):
        return bool(between.node.expr.is_nonnegative)
    return between >= 0
