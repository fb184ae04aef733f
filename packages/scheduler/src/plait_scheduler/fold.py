"""Conditions that the variables' extents decide, and arithmetic on positions.

Concatenation, padding and triangular masks compare indices with constants; where all
points of the loops agree, the comparison and what hangs on it go. Sums, products and remainders
of positions are positions, which loops count without computing with wide integers.
"""

from __future__ import annotations

from collections.abc import Callable

from plait_ir_lowering import (
    Const,
    DType,
    IndexExpr,
    IndexValue,
    Masked,
    Op,
    Value,
    as_index,
    bounds,
)

_TRUE, _FALSE = Const(True, DType.bool_), Const(False, DType.bool_)


def fold(value: Value) -> Value | None:
    """A simpler value that equals `value`, whose operands are folded already; else None."""
    if isinstance(value, Op):
        rule = _RULES.get(value.name)
        return None if rule is None else rule(*value.args)
    if isinstance(value, Masked) and isinstance(value.mask, Const):
        return value.value if value.mask is _TRUE else value.other
    return None


def _compared(name: str) -> Callable[[Value, Value], Value | None]:
    def rule(left: Value, right: Value) -> Value | None:
        first, second = _index_of(left), _index_of(right)
        if first is None or second is None:
            return None
        low, high = bounds(first - second)
        return _decided(name, low, high)

    return rule


def _index_of(value: Value) -> IndexExpr | None:
    if isinstance(value, IndexValue):
        return value.expr
    if isinstance(value, Const) and value.dtype is DType.i64:
        return as_index(int(value.value))
    return None


def _decided(name: str, low: int | None, high: int | None) -> Value | None:
    """Whether `difference name 0` holds for all differences from low to high, or for none."""
    match name:
        case "lt":
            yes, no = high is not None and high < 0, low is not None and low >= 0
        case "le":
            yes, no = high is not None and high <= 0, low is not None and low > 0
        case "gt":
            yes, no = low is not None and low > 0, high is not None and high <= 0
        case "ge":
            yes, no = low is not None and low >= 0, high is not None and high < 0
        case _:
            return None
    return _TRUE if yes else _FALSE if no else None


def _arithmetic(name: str) -> Callable[[Value, Value], Value | None]:
    def rule(left: Value, right: Value) -> Value | None:
        if not isinstance(left, IndexValue) and not isinstance(right, IndexValue):
            return None
        first, second = _index_of(left), _index_of(right)
        if first is None or second is None:
            return None
        found = _calculated(name, first, second)
        return None if found is None else IndexValue(found)

    return rule


def _calculated(name: str, first: IndexExpr, second: IndexExpr) -> IndexExpr | None:
    """The position, where the operation is exact: one factor, or the divisor, is known."""
    match name:
        case "add":
            return first + second
        case "sub":
            return first - second
        case "mul" if first.is_constant or second.is_constant:
            return first * second
        case "rem" if second.is_constant and second.as_int() > 0:
            return first % second
        case "floordiv" if second.is_constant and second.as_int() > 0:
            return first // second
    return None


def _and(left: Value, right: Value) -> Value | None:
    if _FALSE in (left, right):
        return _FALSE
    if left is _TRUE:
        return right
    return left if right is _TRUE else None


def _or(left: Value, right: Value) -> Value | None:
    if _TRUE in (left, right):
        return _TRUE
    if left is _FALSE:
        return right
    return left if right is _FALSE else None


def _not(operand: Value) -> Value | None:
    if isinstance(operand, Const):
        return _FALSE if operand is _TRUE else _TRUE
    return None


def _where(mask: Value, left: Value, right: Value) -> Value | None:
    if isinstance(mask, Const):
        return left if mask is _TRUE else right
    if left is _TRUE and right is _FALSE:
        return mask
    if left is _FALSE and right is _TRUE:
        return Op("logical_not", [mask])
    return left if left is right else None


_RULES: dict[str, Callable[..., Value | None]] = {
    **{name: _compared(name) for name in ("lt", "le", "gt", "ge")},
    **{name: _arithmetic(name) for name in ("add", "sub", "mul", "rem", "floordiv")},
    "logical_and": _and,
    "logical_or": _or,
    "logical_not": _not,
    "where": _where,
}
"""Operations that may fold, and how."""
