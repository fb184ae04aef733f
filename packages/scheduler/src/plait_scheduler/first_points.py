"""What reads the first elements of sorted rows, as part of the kernel that sorts them.

Of a row of 128 scores top-k gives 8, and what follows runs over these: it divides them by their
sum. In the kernel, whose inner domain is the row, such definitions are meant at the first 8 points:
there they are stored, and what they reduce counts for nothing at the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from plait_ir_lowering import (
    Const,
    DType,
    IndexValue,
    Masked,
    Op,
    ReductionKind,
    Value,
    Var,
)
from plait_scheduler.domains import position


def at_first_points(value: Value, kind: ReductionKind, inner: Sequence[Var], first: int) -> Value:
    """`value` at so many first points of a row, and what changes nothing at the others."""
    number = position([var.expr for var in inner], [var.extent for var in inner])
    inside = Op("lt", [IndexValue(number), Const(first, DType.i64)])
    other = neutral(kind, value.dtype)
    assert other is not None, "what has nothing neutral does not follow a sort"
    return Masked(inside, value, other)


def neutral(kind: ReductionKind, dtype: DType) -> Const | None:
    """What changes nothing of what is combined with it, if it is known."""
    if dtype is DType.bool_:
        known = {ReductionKind.ANY: False, ReductionKind.ALL: True}
        return Const(known[kind], dtype) if kind in known else None
    found = dict(_neutral(dtype)).get(kind)
    return None if found is None else Const(found, dtype)


def _neutral(dtype: DType) -> Iterator[tuple[ReductionKind, float]]:
    yield ReductionKind.SUM, 0
    yield ReductionKind.PROD, 1
    bits = 8 * dtype.itemsize - dtype.is_signed
    least = -(1 << bits) if dtype.is_signed else 0
    yield ReductionKind.MAX, -inf if dtype.is_float else least
    yield ReductionKind.MIN, inf if dtype.is_float else (1 << bits) - 1
