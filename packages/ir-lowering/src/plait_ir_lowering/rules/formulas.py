"""How formulas are written as values, in rules for mathematical functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import Lowered
from plait_ir_lowering.rules.elementwise import elementwise


def number(like: Value, value: float) -> Value:
    """A constant of the type of `like`."""
    return constant(value, like.dtype)


def add(a: Value, b: Value) -> Value:
    return Op("add", [a, b])


def sub(a: Value, b: Value) -> Value:
    return Op("sub", [a, b])


def mul(a: Value, b: Value) -> Value:
    return Op("mul", [a, b])


def div(a: Value, b: Value) -> Value:
    return Op("div", [a, b])


def neg(a: Value) -> Value:
    return Op("neg", [a])


def where(condition: Value, a: Value, b: Value) -> Value:
    return Op("where", [condition, a, b])


def is_below(x: Value, bound: float) -> Value:
    return Op("lt", [x, number(x, bound)])


def is_equal(x: Value, value: float) -> Value:
    return Op("eq", [x, number(x, value)])


def power_series(x: Value, coefficients: Sequence[float]) -> Value:
    """By Horner's rule; coefficients from the highest power on."""
    total = number(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = add(mul(total, x), number(x, coefficient))
    return total


def in_double(compute: Callable[..., Value]) -> Callable[..., Value]:
    """The same function of any float type, computed in f64 and rounded once."""

    def wide(*operands: Value) -> Value:
        found = compute(*(cast(operand, DType.f64) for operand in operands))
        return cast(found, operands[0].dtype)

    return wide


def of_floats(compute: Callable[..., Value], count: int = 1) -> Callable[..., Lowered]:
    """A rule for a function of floats, to which integers are converted."""

    def of_one(ctx: LoweringContext, x: object) -> Lowered:
        return elementwise(ctx, [x], compute, Promotion.INT_TO_FLOAT)

    def of_two(ctx: LoweringContext, x: object, y: object) -> Lowered:
        return elementwise(ctx, [x, y], compute, Promotion.INT_TO_FLOAT)

    return of_one if count == 1 else of_two
