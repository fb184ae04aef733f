"""Softmaxes of rows of scores, and what else a program computes of their sums."""

from __future__ import annotations

import math
from collections.abc import Callable

from plait_ir_lowering import Buffer, Const, Load, Masked, Op, Pointwise, ReductionKind, Value, Var
from plait_scheduler.domains import Substitution
from plait_scheduler.makers import Makers, moved
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Softmax:
    """What the softmax of rows of scores is made of, each at the points of the row."""

    makers: Makers
    ranges: tuple[Var, ...]
    """Of the rows."""
    axis: Var
    """Along them."""
    score: Value
    maximum: Load
    total: Load
    exponential: Value
    is_empty: Load | None
    """Whether all scores are -inf, where that gives zeros."""

    @classmethod
    def of(cls, makers: Makers, weights: Pointwise) -> Softmax | None:
        """The softmax along the last of its ranges, of two or more, that a body is; None where it
        is none."""
        *ranges, axis = weights.ranges
        value = makers.expanded(weights.value, ranges[-1], axis)
        if isinstance(value, Op) and value.name == "to" and value.dtype.is_reduced_precision:
            (value,) = value.args  # rounds weights before they are multiplied
        is_empty: Load | None = None
        match value:
            case Op("where", (Load() as is_empty, Const(0), value)):
                pass
            case Masked(Load() as is_empty, Const(0), value):
                pass
        match value:
            case Op(
                "div", (Op("exp", (Op("sub", (score, Load() as top)),)) as raised, Load() as s)
            ):
                found = cls(makers, tuple(ranges), axis, score, top, s, raised, is_empty)
            case _:
                return None
        return found if found._is_right() else None

    def _is_right(self) -> bool:
        """Whether what is loaded is what a softmax takes."""
        return (
            self._reduced(self.maximum, ReductionKind.MAX) is self.score
            and self._reduced(self.total, ReductionKind.SUM) is self.exponential
            and (self.is_empty is None or self._is_of_empty(self.is_empty))
        )

    def _reduced(self, load: Load, kind: ReductionKind) -> Value | None:
        """What a row of a reduction of this kind combines, at the points of the axis."""
        return self.makers.reduced(load, kind, self.axis, self.ranges[-1])

    def sums(self) -> tuple[Buffer, ...]:
        """What gets the logarithms of the sums of the rows, or the largest scores and the
        logarithms of the sums below them; nothing for nothing."""
        logarithms = self._of_rows(_may_be_logarithm)
        for buffer, value in logarithms:
            if self._is_sum(value):
                return (buffer,)
        for sums, value in logarithms:
            top = self._is_sum_below(value)
            if top is None:
                continue
            if self.is_empty is None:
                most = self.makers.buffers[top.buffer]
                return (most, sums) if most.layout.is_row_major else ()
            for most, other in self._of_rows(_may_be_largest):
                if self._is_largest(other, top):
                    return most, sums
        return ()

    def _of_rows(self, may_be: Callable[[Value], bool]) -> list[tuple[Buffer, Value]]:
        """Dense buffers with an element for each row, with their values there."""
        rows = [var for var in self.ranges if var.expr.terms]
        found: list[tuple[Buffer, Value]] = []
        for name, definition in self.makers.table.items():
            body, buffer = definition.body, self.makers.buffers[name]
            if not isinstance(body, Pointwise) or not may_be(body.value):
                continue
            own = [var for var in body.ranges if var.expr.terms]
            sizes = [var.extent for var in own] == [var.extent for var in rows]
            if sizes and buffer.layout.is_row_major:
                places: Substitution = dict(zip(own, (var.expr for var in rows), strict=True))
                found.append((buffer, moved(self.makers.inlined(body.value), places)))
        return found

    def _is_sum(self, value: Value) -> bool:
        """Whether a value is the logarithm of the sum of the exponentials of a row."""
        is_empty, value = _chosen(value, math.inf)
        match value:
            case Op("add", (Op("log", (Load() as total,)), Load() as top)):
                return self._are_of(is_empty, top, total)
        return False

    def _is_sum_below(self, value: Value) -> Load | None:
        """The largest score of a row, where a value is the logarithm of the sum of the
        exponentials below it."""
        is_empty, value = _chosen(value, math.inf)
        match value:
            case Op("log", (Load() as total,)):
                below = self._subtracted(total)
                if below is not None and self._are_of(is_empty, below, total):
                    return below
        return None

    def _is_largest(self, value: Value, top: Load) -> bool:
        """Whether a value is the largest score of a row, and 0 where it has no keys."""
        is_empty, value = _chosen(value, 0.0)
        return value is top and self._is_of_empty(is_empty)

    def _subtracted(self, total: Load) -> Load | None:
        """What is subtracted from what a sum is of the exponentials of."""
        match self._reduced(total, ReductionKind.SUM):
            case Op("exp", (Op("sub", (_, Load() as top)),)):
                return top
        return None

    def _are_of(self, is_empty: Load | None, top: Load, total: Load) -> bool:
        """Whether these are, of a row, whether it is empty, the largest score, and the
        sum of the exponentials below that."""
        raised = Op("exp", [Op("sub", [self.score, top])])
        return (
            self._reduced(top, ReductionKind.MAX) is self.score
            and self._reduced(total, ReductionKind.SUM) is raised
            and self._is_of_empty(is_empty)
        )

    def _is_of_empty(self, is_empty: Load | None) -> bool:
        """Whether it tells that a row is empty, as far as the softmax asks."""
        if is_empty is None or self.is_empty is None:
            return is_empty is self.is_empty
        nothing = Op("eq", [self.score, Const(-math.inf, self.score.dtype)])
        return self._reduced(is_empty, ReductionKind.ALL) is nothing


def _may_be_logarithm(value: Value) -> bool:
    """Whether a value may be the logarithm of a sum, or more."""
    return isinstance(value, Op) and value.name in ("add", "log", "where") and value.dtype.is_float


def _may_be_largest(value: Value) -> bool:
    """Whether a value may be a number that is chosen for rows without keys, or else loaded."""
    return isinstance(value, Op) and value.name == "where" and value.dtype.is_float


def _chosen(value: Value, number: float) -> tuple[Load | None, Value]:
    """Where a number takes a value's place, if anywhere, and that value."""
    match value:
        case Op("where", (Load() as condition, Const(chosen), other)) if chosen == number:
            return condition, other
    return None, value
