"""Chebyshev polynomials of all kinds, of orders that tensors hold.

Low orders follow the recurrence in the operands' own type, as ATen's kernels do. Others are
trigonometric within (-1, 1), as there, and hyperbolic beyond, where ATen goes on with the
recurrence: it is NaN from two orders after it overflows. Closed forms are of |x| and in f64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

from plait_ir_lowering.context import cast
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import lowers
from plait_ir_lowering.rules.formulas import (
    add,
    div,
    is_below,
    is_equal,
    mul,
    neg,
    number,
    of_floats,
    sub,
    where,
)


class _Kind(Enum):
    """The kinds differ in their first order: 0, 1, -1 or +1 is added to x, or to 2 x."""

    T = "t"
    U = "u"
    V = "v"
    W = "w"


_MIRRORED = {_Kind.V: _Kind.W, _Kind.W: _Kind.V}
"""Which kind one is at -x, but for the sign; others are themselves."""
_LOW = 6
"""Up to this order, steps of the recurrence are few."""


def _recurrence(kind: _Kind, x: Value, order: Value) -> Value:
    twice = add(x, x)
    last = number(x, 1)
    shift = {_Kind.V: -1.0, _Kind.W: 1.0}.get(kind, 0.0)
    this = x if kind is _Kind.T else add(twice, number(x, shift))
    found = where(is_equal(order, 0), last, this)
    for each in range(2, _LOW + 1):
        last, this = this, sub(mul(twice, this), last)
        found = where(is_equal(order, each), this, found)
    return found


def _within(kind: _Kind, size: Value, order: Value) -> Value:
    angle = Op("acos", [size])
    middle = mul(add(order, number(order, 0.5)), angle)
    half = mul(angle, number(angle, 0.5))
    match kind:
        case _Kind.T:
            return Op("cos", [mul(order, angle)])
        case _Kind.U:
            top = Op("sin", [mul(add(order, number(order, 1)), angle)])
            return div(top, Op("sin", [angle]))
        case _Kind.V:
            return div(Op("cos", [middle]), Op("cos", [half]))
        case _Kind.W:
            return div(Op("sin", [middle]), Op("sin", [half]))


def _beyond(kind: _Kind, size: Value, order: Value) -> Value:
    """Quotients of hyperbolic functions, as what exp(order * angle) is to be multiplied by."""
    angle = neg(Op("acosh", [size]))
    odd = mul(add(mul(number(order, 2), order), number(order, 1)), angle)
    twice = mul(number(angle, 2), angle)
    one = number(angle, 1)
    match kind:
        case _Kind.T:
            factor = mul(number(angle, 0.5), add(one, Op("exp", [mul(order, twice)])))
        case _Kind.U:
            top = Op("expm1", [mul(add(order, one), twice)])
            factor = div(top, Op("expm1", [twice]))
        case _Kind.V:
            factor = div(add(one, Op("exp", [odd])), add(one, Op("exp", [angle])))
        case _Kind.W:
            factor = div(Op("expm1", [odd]), Op("expm1", [angle]))
    return mul(Op("exp", [neg(mul(order, angle))]), factor)


def _at_one(kind: _Kind, order: Value) -> Value:
    if kind in (_Kind.T, _Kind.V):
        return number(order, 1)
    return add(order if kind is _Kind.U else add(order, order), number(order, 1))


def _high(kind: _Kind, size: Value, order: Value, own: DType) -> Value:
    """At a size of the argument that is not 1."""
    two_before = _beyond(kind, size, sub(order, number(order, 2)))
    overflowed = Op("isinf", [cast(two_before, own)])
    far = where(overflowed, number(size, math.nan), _beyond(kind, size, order))
    return where(is_below(size, 1), _within(kind, size, order), far)


def _polynomial(kind: _Kind, x: Value, degree: Value) -> Value:
    wide, order = cast(x, DType.f64), Op("trunc", [cast(degree, DType.f64)])
    size = Op("abs", [wide])
    mirrored = is_below(wide, 0)
    half = mul(order, number(order, 0.5))
    turns = Op("logical_and", [mirrored, Op("ne", [half, Op("floor", [half])])])
    other = _MIRRORED.get(kind, kind)

    def either(compute: Callable[[_Kind], Value]) -> Value:
        if other is kind:
            return compute(kind)
        return where(mirrored, compute(other), compute(kind))

    high = either(lambda each: _high(each, size, order, x.dtype))
    found = where(is_equal(size, 1), either(lambda each: _at_one(each, order)), high)
    found = cast(where(turns, neg(found), found), x.dtype)
    is_low = Op("logical_and", [is_below(order, _LOW + 1), Op("ne", [size, number(size, 1)])])
    found = where(is_low, _recurrence(kind, x, cast(order, x.dtype)), found)
    is_order = Op("ge", [order, number(order, 0)])
    is_order = Op("logical_and", [is_order, is_below(order, 2.0**63)])
    return where(is_order, found, number(x, 0))


def _plain(kind: _Kind) -> Callable[[Value, Value], Value]:
    return lambda x, degree: _polynomial(kind, x, degree)


def _shifted(kind: _Kind) -> Callable[[Value, Value], Value]:
    """Of 2 x - 1."""

    def compute(x: Value, degree: Value) -> Value:
        return _polynomial(kind, sub(add(x, x), number(x, 1)), degree)

    return compute


for _kind in _Kind:
    for _prefix, _make in (("", _plain), ("shifted_", _shifted)):
        _name = f"special_{_prefix}chebyshev_polynomial_{_kind.value}"
        _compute = of_floats(_make(_kind), 2)
        lowers(_name, f"{_name}.x_scalar", f"{_name}.n_scalar")(_compute)
