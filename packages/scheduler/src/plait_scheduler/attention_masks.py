"""Which keys a row of an attention may see: what a mask says by its form, or by its values.

Keys outside have a score of -inf, so a kernel need not read blocks of them; and where a mask leaves
a whole block of pairs, it need not be computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from plait_ir_lowering import (
    Buffer,
    CheckedIndex,
    Const,
    Definition,
    DType,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Masked,
    Op,
    Reduction,
    ReductionKind,
    Value,
    Var,
    as_index,
    atoms,
    bounds,
    post_order,
    rewrite,
    stride_of,
)
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class KeyLimit:
    """Keys from a position on (`is_low`), or up to it: of the other variables."""

    is_low: bool
    place: IndexExpr


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What all of some limits allow, or (`is_any`) any of them."""

    is_any: bool
    parts: tuple[KeyLimit | KeyLimits, ...]


Limits: TypeAlias = KeyLimit | KeyLimits


def without_masks(score: Value) -> tuple[tuple[Value, ...], Value]:
    """The conditions without which a score is -inf, and the score where all of them hold."""
    masks: list[Value] = []
    while True:
        match score:
            case Op("where", (mask, inner, Const(number))) if number == -math.inf:
                pass
            case Masked(mask, inner, Const(number)) if number == -math.inf:
                pass
            case _:
                return tuple(masks), score
        masks.append(mask)
        score = inner


def conditions_of(weight: Value) -> tuple[Value, ...]:
    """Conditions without which a weight is 0."""
    match weight:
        case Op("where", (mask, inner, Const(0))) | Masked(mask, inner, Const(0)):
            return (mask, *conditions_of(inner))
        case Op("mul", (left, right)):
            return tuple(dict.fromkeys([*conditions_of(left), *conditions_of(right)]))
        case Op("div", (inner, _)) | Op("neg" | "to", (inner,)):
            return conditions_of(inner)
        case Op("exp", (Op("sub", (score, _)),)) | Op("exp", (score,)):
            return without_masks(score)[0]
    return ()


def shared_conditions(weights: Sequence[Value]) -> tuple[Value, ...]:
    """Conditions without which all weights of a mixture are 0."""
    first, *others = map(conditions_of, weights)
    return tuple(mask for mask in first if all(mask in other for other in others))


def where_all_hold(value: Value, conditions: Collection[Value]) -> Value:
    """A value at points where some conditions are known to hold."""

    def leaf(part: Value) -> Value | None:
        match part:
            case Op("where", (mask, Value() as inner, _)) if mask in conditions:
                return inner
            case Masked(mask, Value() as inner, _) if mask in conditions:
                return inner
        return None

    return rewrite(value, leaf, lambda expr: expr)


def key_limits(mask: Value, row: Var, axis: Var) -> Limits | None:
    """What a mask of comparisons of positions allows; None for any other mask, and where a limit
    does not move with the row by a known step."""
    match mask:
        case Op("logical_and" | "bitwise_and", parts):
            return _joined(False, parts, row, axis)
        case Op("logical_or" | "bitwise_or", parts):
            return _joined(True, parts, row, axis)
        case Op(name, (left, right)) if name in _NOT_NEGATIVE or name == "eq":
            first, second = _position(left), _position(right)
            if first is None or second is None:
                return None
            if name == "eq":
                ends = [_limit(expr, row, axis) for expr in (first - second, second - first)]
                known = tuple(each for each in ends if each is not None)
                return KeyLimits(False, known) if len(known) == len(ends) else None
            difference = _NOT_NEGATIVE[name](first, second)
            return _limit(difference, row, axis)
    return None


_NOT_NEGATIVE: dict[str, Callable[[IndexExpr, IndexExpr], IndexExpr]] = {
    "ge": lambda a, b: a - b,
    "gt": lambda a, b: a - b - 1,
    "le": lambda a, b: b - a,
    "lt": lambda a, b: b - a - 1,
}
"""What is at least 0 where a comparison of two integers holds."""


def _joined(is_any: bool, parts: Sequence[Value], row: Var, axis: Var) -> Limits | None:
    found = [key_limits(part, row, axis) for part in parts]
    known = tuple(each for each in found if each is not None)
    return KeyLimits(is_any, known) if len(known) == len(found) else None


def _position(value: Value) -> IndexExpr | None:
    """An integer value as a sum of positions, sizes and numbers."""
    match value:
        case IndexValue():
            return value.expr
        case Const(number) if value.dtype.is_integer:
            return as_index(int(number))
        case Op("add" | "sub" as name, (left, right)) if value.dtype is DType.i64:
            first, second = _position(left), _position(right)
            if first is None or second is None:
                return None
            return first + second if name == "add" else first - second
        case Op("mul", (inner, Const(number))) | Op("mul", (Const(number), inner)):
            position = _position(inner) if value.dtype is DType.i64 else None
            return None if position is None else position * int(number)
        case Op("neg", (inner,)) if value.dtype is DType.i64:
            position = _position(inner)
            return None if position is None else as_index(0) - position
    return None


def _limit(expr: IndexExpr, row: Var, axis: Var) -> KeyLimit | None:
    """Where `expr` is at least 0, if that is up to a key or from one on."""
    step = stride_of(expr, axis)
    if step is None or not step.is_constant or abs(step.as_int()) != 1:
        return None
    rest = expr - step * axis.expr
    along = stride_of(rest, row)
    if along is None or not along.is_constant:
        return None
    return KeyLimit(True, -rest) if step.as_int() > 0 else KeyLimit(False, rest)


def may_fail(value: Value) -> bool:
    """Whether computing it can meet an index outside of its dimension."""
    return any(
        isinstance(part, CheckedIndex) and in_bounds(part) is None for part in post_order([value])
    )


def in_bounds(value: CheckedIndex) -> IndexExpr | None:
    """The coordinate, where that certainly lies in its dimension, counted from the start."""
    place = _position(value.value)
    if place is None or not value.size.is_constant:
        return None
    low, high = bounds(place)
    inside = low is not None and high is not None and low >= 0 and high < value.size.as_int()
    return place if inside else None


def spans_of(
    mask: Value, ranges: Sequence[Var], axis: Var, target: Definition, taken: set[str]
) -> tuple[list[Definition], tuple[Load, ...]]:
    """Reductions that find for each row of `mask` the first and the last key that it allows, and
    how many; and the loads of what they find."""
    used = {atom for part in post_order([mask]) for expr in _exprs(part) for atom in atoms(expr)}
    kept = tuple(var for var in ranges if var in used) or tuple(ranges[-1:])
    layout = Layout.of([var.extent for var in kept])
    key, number = _narrow(axis.expr), _narrow(axis.extent)
    made: list[Definition] = []
    loads: list[Load] = []
    for name, kind, inside, outside in (
        ("first", ReductionKind.MIN, key, number),
        ("last", ReductionKind.MAX, key, Const(-1, DType.i32)),
        ("count", ReductionKind.SUM, Const(1, DType.i32), Const(0, DType.i32)),
    ):
        stem = f"{target.buffers[0].name}_{name}"
        while stem in taken:
            stem += "_"
        taken.add(stem)
        body = Reduction(kept, (axis,), kind, Op("where", [mask, inside, outside]))
        buffer = Buffer(stem, DType.i32, target.buffers[0].device, layout)
        made.append(Definition((buffer,), body, target.origin))
        loads.append(Load(stem, [var.expr for var in kept], DType.i32))
    return made, tuple(loads)


def _narrow(expr: IndexExpr) -> Value:
    return Op("to", [IndexValue(expr)], DType.i32)


def _exprs(value: Value) -> Sequence[IndexExpr]:
    match value:
        case IndexValue(expr):
            return (expr,)
        case Load(_, index):
            return tuple(at for at in index if isinstance(at, IndexExpr))
    return ()
