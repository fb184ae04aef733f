"""Elementwise functions that are defined apart at zeros, infinities or NaN."""

from __future__ import annotations

import math
from typing import Any

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.ops import PARTS
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.complex_exponentials import logarithm_of_sum
from plait_ir_lowering.rules.complex_formulas import op
from plait_ir_lowering.rules.complex_numbers import angle as complex_angle
from plait_ir_lowering.rules.elementwise import elementwise
from plait_ir_lowering.tensors import TensorExpr


def _like(value: Value, number: float) -> Value:
    return constant(number, value.dtype)


def _is_nan(value: Value) -> Value:
    return Op("isnan", [value]) if value.dtype.is_float else constant(False, DType.bool_)


@lowers("frac")
def frac(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    if not x.dtype.is_float:
        return None  # an error, which ATen raises
    return elementwise(ctx, [x], lambda a: Op("sub", [a, Op("trunc", [a])]))


def _ignoring_nan(name: str) -> Any:
    def rule(ctx: LoweringContext, x: TensorExpr, y: TensorExpr) -> Lowered:
        def compute(a: Value, b: Value) -> Value:
            either = Op("where", [_is_nan(b), a, Op(name, [a, b])])
            return Op("where", [_is_nan(a), b, either])

        return elementwise(ctx, [x, y], compute)

    return rule


lowers("fmax")(_ignoring_nan("maximum"))
lowers("fmin")(_ignoring_nan("minimum"))


@lowers("heaviside")
def heaviside(ctx: LoweringContext, x: TensorExpr, values: TensorExpr) -> Lowered:
    if x.dtype is not values.dtype:
        return None  # an error, which ATen raises

    def compute(a: Value, b: Value) -> Value:
        step = cast(Op("gt", [a, _like(a, 0)]), a.dtype)
        return Op("where", [Op("eq", [a, _like(a, 0)]), b, step])

    return elementwise(ctx, [x, values], compute)


def _is_infinity(infinity: float) -> Any:
    def rule(ctx: LoweringContext, x: TensorExpr) -> Lowered:
        def compute(a: Value) -> Value:
            if not a.dtype.is_float:
                return constant(False, DType.bool_)
            return Op("eq", [a, _like(a, infinity)])

        return elementwise(ctx, [x], compute)

    return rule


lowers("isposinf")(_is_infinity(math.inf))
lowers("isneginf")(_is_infinity(-math.inf))


@lowers("signbit")
def signbit(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    def compute(a: Value) -> Value:
        if a.dtype.is_float:
            return Op("signbit", [a])
        return constant(False, a.dtype) if a.dtype is DType.bool_ else Op("lt", [a, _like(a, 0)])

    return elementwise(ctx, [x], compute)


@lowers("angle")
def angle(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    if x.dtype in PARTS:
        return elementwise(ctx, [x], complex_angle, by_parts=True)

    def compute(a: Value) -> Value:
        turned = Op("where", [Op("lt", [a, _like(a, 0)]), _like(a, math.pi), _like(a, 0)])
        return Op("where", [_is_nan(a), a, turned])

    return elementwise(ctx, [x], compute, Promotion.INT_TO_FLOAT)


@lowers("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")
def xlogy(ctx: LoweringContext, x: Any, y: Any) -> Lowered:
    return _times(ctx, x, y, "log")


@lowers("special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar")
def xlog1py(ctx: LoweringContext, x: Any, y: Any) -> Lowered:
    return _times(ctx, x, y, "log1p")


def _times(ctx: LoweringContext, x: Any, y: Any, logarithm: str) -> Lowered:
    """Zero times any logarithm is zero, but for one of NaN."""

    def compute(a: Value, b: Value) -> Value:
        product = Op("mul", [a, Op(logarithm, [b])])
        rest = Op("where", [Op("eq", [a, _like(a, 0)]), _like(a, 0), product])
        return Op("where", [_is_nan(b), b, rest])

    return elementwise(ctx, [x, y], compute, Promotion.INT_TO_FLOAT)


@lowers("logaddexp")
def logaddexp(ctx: LoweringContext, x: TensorExpr, y: TensorExpr) -> Lowered:
    if x.dtype in PARTS and y.dtype in PARTS:
        return elementwise(ctx, [x, y], logarithm_of_sum, by_parts=True)
    return _log_of_sum(ctx, x, y, "exp", 1.0)


@lowers("logaddexp2")
def logaddexp2(ctx: LoweringContext, x: TensorExpr, y: TensorExpr) -> Lowered:
    return _log_of_sum(ctx, x, y, "exp2", 1 / math.log(2))


def _log_of_sum(
    ctx: LoweringContext, x: TensorExpr, y: TensorExpr, power: str, scale: float
) -> Lowered:
    if not (x.dtype.is_float and y.dtype.is_float):
        return None  # an error, which ATen raises

    def compute(a: Value, b: Value) -> Value:
        distance = Op("abs", [Op("sub", [a, b])])
        small = Op("log1p", [Op(power, [Op("neg", [distance])])])
        summed = Op("add", [Op("maximum", [a, b]), Op("mul", [small, _like(a, scale)])])
        # Of two equal infinities the distance is NaN.
        alike = Op("logical_and", [Op("isinf", [a]), Op("eq", [a, b])])
        return Op("where", [alike, a, summed])

    return elementwise(ctx, [x, y], compute)


@lowers("logit")
def logit(ctx: LoweringContext, x: TensorExpr, eps: float | None) -> Lowered:
    def compute(a: Value) -> Value:
        if eps is not None and eps >= 0:
            low, high = _like(a, eps), Op("sub", [_like(a, 1), _like(a, eps)])
            below = Op("where", [Op("lt", [a, low]), low, a])
            a = Op("where", [Op("gt", [below, high]), high, below])
        return Op("log", [Op("div", [a, Op("sub", [_like(a, 1), a])])])

    return elementwise(ctx, [x], compute, Promotion.INT_TO_FLOAT)


@lowers("sinc")
def sinc(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    def compute(a: Value) -> Value:
        turned = op("mul", [a, _like(a, math.pi)])
        ratio = op("div", [op("sin", [turned]), turned])
        return Op("where", [op("eq", [a, _like(a, 0)]), _like(a, 1), ratio])

    return elementwise(ctx, [x], compute, Promotion.INT_TO_FLOAT, by_parts=True)


@lowers("round.decimals")
def round_decimals(ctx: LoweringContext, x: TensorExpr, decimals: int) -> Lowered:
    if not x.dtype.is_float:
        return None  # an error, which ATen raises

    def compute(a: Value) -> Value:
        tens = _like(a, 10.0 ** abs(decimals))
        there, back = ("mul", "div") if decimals >= 0 else ("div", "mul")
        return Op(back, [Op("round", [Op(there, [a, tens])]), tens])

    return elementwise(ctx, [x], compute)
