"""Positions among values: what a comparison or a coordinate says of loop variables."""

from __future__ import annotations

from collections.abc import Sequence

from plait_ir_lowering import (
    CheckedIndex,
    Const,
    DType,
    IndexExpr,
    IndexValue,
    Op,
    Value,
    as_index,
)


def position(value: Value) -> IndexExpr | None:
    """A position or a whole number as an index expression; None for anything else."""
    if isinstance(value, IndexValue):
        return value.expr
    if isinstance(value, Const) and value.dtype is DType.i64:
        return as_index(int(value.value))
    return None


def never_negative(check: CheckedIndex) -> Value | None:
    """The index that a check refuses where it is negative; None where it counts from the end.

    Such a check is of an index that is set to the size where it is negative.
    """
    match check.value:
        case Op(
            "where",
            (
                Op("lt", (Value() as asked, Const(0, _))),
                IndexValue(expr),
                Value() as index,
            ),
        ) if asked is index and expr is check.size:
            return index
    return None


def recombined(
    places: Sequence[tuple[Value, IndexExpr]],
) -> list[tuple[Value, IndexExpr]]:
    """Coordinates and their strides, with those joined that come of dividing one number.

    Where x // 256 and x % 256 are coordinates of rows of 256 elements, x is the offset.
    """
    left = list(places)
    while (joined := _first_pair(left)) is not None:
        left = joined
    return left


def _first_pair(
    places: Sequence[tuple[Value, IndexExpr]],
) -> list[tuple[Value, IndexExpr]] | None:
    for rest, step in places:
        match rest:
            case Op("rem", (Value() as whole, Const(divisor, _))):
                base, below = _quotient(whole)
                for other, stride in places:
                    if stride is step * int(divisor) and _quotient(other) == (
                        base,
                        below * int(divisor),
                    ):
                        kept = [each for each in places if each[0] not in (rest, other)]
                        return [*kept, (whole, step)]
    return None


def _quotient(value: Value) -> tuple[Value, int]:
    """A value as another one divided by a number."""
    divisor = 1
    while isinstance(value, Op) and value.name == "floordiv":
        inner, by = value.args
        if not isinstance(by, Const) or by.value <= 0:
            break
        value, divisor = inner, divisor * int(by.value)
    return value, divisor
