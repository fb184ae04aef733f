"""Division: exact, rounded towards zero, and rounded down."""

from __future__ import annotations

import math
from typing import Any

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion

from plait_ir_lowering.context import LoweringContext, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.complex_formulas import op
from plait_ir_lowering.rules.elementwise import elementwise, through
from plait_ir_lowering.tensors import TensorExpr

_DIVISOR = (1,)
"""The place of what ATen divides by, in f32 where it is one number."""


@lowers("div.Tensor", "div.Scalar")
def div(ctx: LoweringContext, x: Any, y: Any) -> Lowered:
    return elementwise(
        ctx,
        [x, y],
        lambda a, b: op("div", [a, b]),
        Promotion.INT_TO_FLOAT,
        wide_elements=_DIVISOR,
        by_parts=True,
    )


@lowers("div.Tensor_mode", "div.Scalar_mode")
def div_mode(ctx: LoweringContext, x: Any, y: Any, rounding_mode: str | None) -> Lowered:
    if rounding_mode is None:
        return div(ctx, x, y)
    if rounding_mode == "floor":
        return floor_divide(ctx, x, y)
    rounds = _rounds_each_step(ctx, y)
    result = ctx.dtype_of(ctx.result)

    def compute(a: Value, b: Value) -> Value:
        if rounds:
            return Op("trunc", [through(Op("div", [a, b]), result)])
        return Op("truncdiv", [a, b])

    return elementwise(ctx, [x, y], compute, wide_elements=_DIVISOR)


@lowers("floor_divide")
def floor_divide(ctx: LoweringContext, x: Any, y: Any) -> Lowered:
    if _rounds_each_step(ctx, y):
        result = ctx.dtype_of(ctx.result)
        return elementwise(ctx, [x, y], lambda a, b: floor_quotient(a, b, result))
    return elementwise(ctx, [x, y], lambda a, b: Op("floordiv", [a, b]), wide_elements=_DIVISOR)


def _rounds_each_step(ctx: LoweringContext, divisor: Any) -> bool:
    """ATen divides bf16 and f16 tensors in that precision; by numbers, it divides in f32."""
    tensor = isinstance(divisor, TensorExpr) and bool(divisor.dims)
    return tensor and ctx.dtype_of(ctx.result).is_reduced_precision


def floor_quotient(a: Value, b: Value, narrow: DType) -> Value:
    """`floor(a / b)` of f32 values, each step rounded to `narrow`.

    The steps of ATen's `div_floor_floating_vec`: from the remainder, so that the quotient is
    an integer but for rounding.
    """
    zero, one = constant(0, a.dtype), constant(1, a.dtype)
    infinity = constant(math.inf, a.dtype)

    def step(name: str, *operands: Value) -> Value:
        return through(Op(name, operands), narrow)

    basic = step("div", a, b)
    remainder = step("fmod", a, b)
    overflows = Op("eq", [Op("abs", [basic]), infinity])
    finite = Op("ne", [Op("abs", [a]), infinity])
    whole = Op("where", [Op("logical_and", [overflows, finite]), a, step("sub", a, remainder)])
    quotient = step("div", whole, b)
    signs = Op("logical_xor", [Op("lt", [b, zero]), Op("lt", [remainder, zero])])
    below = Op("logical_and", [Op("ne", [remainder, zero]), signs])
    quotient = Op("where", [below, step("sub", quotient, one), quotient])
    floor = Op("floor", [quotient])
    short = Op("gt", [step("sub", quotient, floor), constant(0.5, a.dtype)])
    floor = Op("where", [short, step("add", floor, one), floor])
    signed_zero = Op("copysign", [zero, basic])
    floor = Op("where", [Op("eq", [quotient, zero]), signed_zero, floor])
    return Op("where", [Op("eq", [b, zero]), basic, floor])
