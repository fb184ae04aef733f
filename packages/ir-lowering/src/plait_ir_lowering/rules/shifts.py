"""Shifts of integers; by as many bits as there are or more, all are shifted out.

`gcd` and `lcm` stay ATen's: how many divisions they take follows from the numbers.
"""

from __future__ import annotations

from typing import Any

from plait_ir_lowering.context import LoweringContext
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.elementwise import elementwise
from plait_ir_lowering.rules.formulas import number, where

_OVERLOADS = ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
_OPERATORS = ("Tensor", "Scalar")


def _is_inside(amount: Value) -> Value:
    """Whether some bits stay; negative amounts shift all out."""
    most = number(amount, 8 * amount.dtype.itemsize)
    below = Op("lt", [amount, most])
    if not amount.dtype.is_signed:
        return below
    return Op("logical_and", [Op("ge", [amount, number(amount, 0)]), below])


def _left(a: Value, amount: Value) -> Value:
    inside, none = _is_inside(amount), number(a, 0)
    return where(inside, Op("lshift", [a, where(inside, amount, none)]), none)


def _right(a: Value, amount: Value) -> Value:
    inside, none = _is_inside(amount), number(a, 0)
    if a.dtype.is_signed:  # the sign stays
        last = number(a, 8 * a.dtype.itemsize - 1)
        return Op("rshift", [a, where(inside, amount, last)])
    return where(inside, Op("rshift", [a, where(inside, amount, none)]), none)


@lowers(*(f"bitwise_left_shift.{each}" for each in _OVERLOADS))
@lowers(*(f"__lshift__.{each}" for each in _OPERATORS))
def left_shift(ctx: LoweringContext, x: Any, amount: Any) -> Lowered:
    if not ctx.dtype_of(ctx.result).is_integer:
        return None  # floats times powers of 2, and what ATen refuses
    return elementwise(ctx, [x, amount], _left)


@lowers(*(f"bitwise_right_shift.{each}" for each in _OVERLOADS))
@lowers(*(f"__rshift__.{each}" for each in _OPERATORS))
def right_shift(ctx: LoweringContext, x: Any, amount: Any) -> Lowered:
    if not ctx.dtype_of(ctx.result).is_integer:
        return None
    return elementwise(ctx, [x, amount], _right)
