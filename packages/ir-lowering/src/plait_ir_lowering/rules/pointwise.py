"""Elementwise ops: arithmetic, comparison, activation, casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.ops import PARTS
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import Lowered, Rule, find_overload, lowers
from plait_ir_lowering.rules.complex_formulas import fused, op
from plait_ir_lowering.rules.complex_numbers import parts
from plait_ir_lowering.rules.elementwise import elementwise, operand_values, through
from plait_ir_lowering.tensors import NumberExpr, TensorExpr, dimensions

# ATen name → IR operation, of one operand that is promoted to a float.
UNARY_FLOAT = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh"),
    *("atanh", "sigmoid", "erf", "erfc", "lgamma"),
)
# ... of one operand that keeps its dtype.
UNARY_SAME = {
    "neg": "neg",
    "abs": "abs",
    "sgn": "sign",
    "sign": "sign",
    "bitwise_not": "bitwise_not",
}
# ... that leave integers as they are.
ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "round"}
# ... of two operands of one promoted dtype.
BINARY_SAME = {
    "mul.Tensor": "mul",
    "mul.Scalar": "mul",
    "maximum": "maximum",
    "minimum": "minimum",
    "remainder.Tensor": "rem",
    "remainder.Scalar": "rem",
    "remainder.Scalar_Tensor": "rem",
    "fmod.Tensor": "fmod",
    "fmod.Scalar": "fmod",
    "bitwise_and.Tensor": "bitwise_and",
    "bitwise_and.Scalar": "bitwise_and",
    "bitwise_and.Scalar_Tensor": "bitwise_and",
    "bitwise_or.Tensor": "bitwise_or",
    "bitwise_or.Scalar": "bitwise_or",
    "bitwise_or.Scalar_Tensor": "bitwise_or",
    "bitwise_xor.Tensor": "bitwise_xor",
    "bitwise_xor.Scalar": "bitwise_xor",
    "bitwise_xor.Scalar_Tensor": "bitwise_xor",
}
BINARY_FLOAT = {
    "atan2": "atan2",
    "copysign.Tensor": "copysign",
    "copysign.Scalar": "copysign",
    "hypot": "hypot",
}
COMPARISONS = {
    f"{name}.{overload}": name
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for overload in ("Tensor", "Scalar")
}
LOGICAL = {name: name for name in ("logical_and", "logical_or", "logical_xor")}


def _plain(name: str, arity: int, promotion: Promotion) -> Rule:
    if arity == 1:

        def unary(ctx: LoweringContext, x: TensorExpr) -> Lowered:
            if x.dtype is DType.bool_ and name == "abs":
                return None  # an error, which ATen raises
            return elementwise(ctx, [x], lambda a: op(name, [a]), promotion, by_parts=True)

        return unary

    def binary(ctx: LoweringContext, x: Any, y: Any) -> Lowered:
        return elementwise(
            ctx,
            [x, y],
            lambda a, b: op(name, [a, b]),
            promotion,
            narrow_scalars=name != "mul",
            wide_elements=(1,) if name == "mul" else (),
            by_parts=True,
        )

    return binary


def _logical(name: str) -> Rule:
    def rule(ctx: LoweringContext, x: Any, y: Any) -> Lowered:
        return elementwise(
            ctx,
            [x, y],
            lambda a, b: Op(name, [truth(a), truth(b)]),
            Promotion.ALWAYS_BOOL,
            by_parts=True,
        )

    return rule


def _rounding(name: str) -> Rule:
    def rule(ctx: LoweringContext, x: TensorExpr) -> Lowered:
        if x.dtype is DType.bool_:
            return None  # an error, which ATen raises
        return elementwise(ctx, [x], lambda a: Op(name, [a]) if a.dtype.is_float else a)

    return rule


for _names, _arity, _promotion in (
    ({name: name for name in UNARY_FLOAT}, 1, Promotion.INT_TO_FLOAT),
    (UNARY_SAME, 1, Promotion.DEFAULT),
    (BINARY_SAME, 2, Promotion.DEFAULT),
    (BINARY_FLOAT, 2, Promotion.INT_TO_FLOAT),
    (COMPARISONS, 2, Promotion.ALWAYS_BOOL),
):
    for _aten, _op in _names.items():
        lowers(_aten)(_plain(_op, _arity, _promotion))
for _aten, _op in LOGICAL.items():
    lowers(_aten)(_logical(_op))
for _aten, _op in ROUNDING.items():
    lowers(_aten)(_rounding(_op))


def truth(value: Value) -> Value:
    """Whether a value is not zero."""
    if value.dtype is DType.bool_:
        return value
    return op("ne", [value, constant(0, value.dtype)])


@lowers("logical_not")
def logical_not(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return elementwise(
        ctx, [x], lambda a: Op("logical_not", [truth(a)]), Promotion.ALWAYS_BOOL, by_parts=True
    )


def _scaled(value: Value, alpha: Any) -> Value:
    return value if alpha == 1 else op("mul", [value, constant(alpha, value.dtype)])


def _plus(ctx: LoweringContext, a: Value, b: Value, alpha: Any) -> Value:
    """`a + b * alpha`, with alpha rounded to the result's dtype, as ATen's additions do."""
    if alpha == 1:
        return op("add", [a, b])
    result = ctx.dtype_of(ctx.result)
    narrow = result if result.is_reduced_precision else b.dtype
    return fused(b, cast(constant(alpha, narrow), b.dtype), a)


def _minus(ctx: LoweringContext, a: Value, b: Value, alpha: Any) -> Value:
    return op("sub", [a, b]) if alpha == 1 else _plus(ctx, a, op("neg", [b]), alpha)


@lowers("add.Tensor", "add.Scalar")
def add(ctx: LoweringContext, x: Any, y: Any, alpha: Any) -> Lowered:
    def compute(a: Value, b: Value) -> Value:
        return _plus(ctx, a, b, alpha)

    return elementwise(ctx, [x, y], compute, narrow_scalars=True, by_parts=True)


@lowers("sub.Tensor", "sub.Scalar")
def sub(ctx: LoweringContext, x: Any, y: Any, alpha: Any) -> Lowered:
    def compute(a: Value, b: Value) -> Value:
        return _minus(ctx, a, b, alpha)

    return elementwise(ctx, [x, y], compute, narrow_scalars=True, by_parts=True)


@lowers("rsub.Tensor", "rsub.Scalar")
def rsub(ctx: LoweringContext, x: Any, y: Any, alpha: Any) -> Lowered:
    def compute(a: Value, b: Value) -> Value:
        return _minus(ctx, b, a, alpha)

    return elementwise(ctx, [x, y], compute, narrow_scalars=True, by_parts=True)


@lowers("square")
def square(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return elementwise(ctx, [x], lambda a: op("mul", [a, a]), by_parts=True)


@lowers("pow.Tensor_Scalar")
def pow_scalar(ctx: LoweringContext, x: TensorExpr, exponent: Any) -> Lowered:
    whole = x.dtype.is_integer or x.dtype is DType.bool_
    if whole and isinstance(exponent, int) and exponent < 0:
        return None  # an error, which ATen raises

    def compute(a: Value, b: Value) -> Value:
        if a.dtype in PARTS:
            return _power_of_pairs(a, b, exponent)
        if exponent == 2:
            return op("mul", [a, a])
        if x.dtype is DType.f16:
            return Op("pow", [a, b])  # as ATen, which has no special cases here
        if isinstance(exponent, NumberExpr):
            return _power_of_each_call(a, b)
        if exponent == 3:
            return Op("mul", [through(Op("mul", [a, a]), x.dtype), a])
        if a.dtype.is_float and exponent == -2:
            return Op("div", [constant(1, a.dtype), through(Op("mul", [a, a]), x.dtype)])
        if a.dtype.is_float and exponent == 0.5:
            return Op("sqrt", [a])
        if a.dtype.is_float and exponent == -0.5:
            return Op("rsqrt", [a])
        if a.dtype.is_float and exponent == -1:
            return Op("reciprocal", [a])
        return Op("pow", [a, b])

    return elementwise(ctx, [x, exponent], compute, narrow_scalars=True, by_parts=True)


def _power_of_pairs(base: Value, power: Value, exponent: Any) -> Value:
    square = op("mul", [base, base])
    match exponent:
        case 0:
            return constant(1, base.dtype)
        case 1:
            return base
        case 2:
            return square
        case 3:
            return op("mul", [square, base])
        case 0.5 | -0.5:
            return op("sqrt" if exponent > 0 else "rsqrt", [base])
        case -1 | -2:
            return op("reciprocal", [base if exponent == -1 else square])
    return op("pow", [base, power])


def _power_of_each_call(base: Value, exponent: Value) -> Value:
    """Roots differ from the power in what they give of infinities and negative zeros."""
    found = Op("pow", [base, exponent])
    for name, number in (("rsqrt", -0.5), ("sqrt", 0.5)):
        is_root = Op("eq", [exponent, constant(number, exponent.dtype)])
        found = Op("where", [is_root, Op(name, [base]), found])
    return found


@lowers("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(ctx: LoweringContext, x: Any, y: Any) -> Lowered:
    def compute(a: Value, b: Value) -> Value:
        if a.dtype in PARTS and not isinstance(x, TensorExpr) and x == 1:
            return a
        return op("pow", [a, b])

    return elementwise(ctx, [x, y], compute, narrow_scalars=True, by_parts=True)


@lowers("isnan")
def isnan(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return _predicate(ctx, x, "isnan")


@lowers("isinf")
def isinf(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return _predicate(ctx, x, "isinf")


def _predicate(ctx: LoweringContext, x: TensorExpr, name: str) -> Lowered:
    def compute(a: Value) -> Value:
        if a.dtype in PARTS:
            return Op("logical_or", [Op(name, [each]) for each in parts(a)])
        return Op(name, [a]) if a.dtype.is_float else constant(False, DType.bool_)

    return elementwise(ctx, [x], compute, by_parts=True)


@lowers("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(ctx: LoweringContext, condition: TensorExpr, x: Any, y: Any) -> Lowered:
    dtype = ctx.dtype_of(ctx.result)
    dims = dimensions(ctx.result.shape)
    chosen = truth(condition.broadcast_at([dim.expr for dim in dims]))
    a, b = operand_values([x, y], dims, dtype)
    return ctx.pointwise(dims, Op("where", [chosen, a, b]))


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(ctx: LoweringContext, x: TensorExpr, mask: TensorExpr, value: Any) -> Lowered:
    return where(ctx, mask, value, x)


@lowers("clamp", "clamp.Tensor")
def clamp(ctx: LoweringContext, x: TensorExpr, low: Any, high: Any) -> Lowered:
    operands = [operand for operand in (x, low, high) if operand is not None]

    def compute(a: Value, *limits: Value) -> Value:
        remaining = list(limits)
        if low is not None:
            a = Op("maximum", [a, remaining.pop(0)])
        return Op("minimum", [a, remaining.pop(0)]) if high is not None else a

    return elementwise(ctx, operands, compute)


@lowers("clamp_min", "clamp_min.Tensor")
def clamp_min(ctx: LoweringContext, x: TensorExpr, low: Any) -> Lowered:
    return clamp(ctx, x, low, None)


@lowers("clamp_max", "clamp_max.Tensor")
def clamp_max(ctx: LoweringContext, x: TensorExpr, high: Any) -> Lowered:
    return clamp(ctx, x, None, high)


@lowers("hardtanh")
def hardtanh(ctx: LoweringContext, x: TensorExpr, low: Any, high: Any) -> Lowered:
    return clamp(ctx, x, low, high)


@lowers("addcmul")
def addcmul(ctx: LoweringContext, x: Any, y: Any, z: Any, value: Any) -> Lowered:
    return elementwise(
        ctx,
        [x, y, z],
        lambda a, b, c: fused(_scaled(b, value), c, a),
        by_parts=True,
    )


@lowers("addcdiv")
def addcdiv(ctx: LoweringContext, x: Any, y: Any, z: Any, value: Any) -> Lowered:
    return elementwise(
        ctx,
        [x, y, z],
        lambda a, b, c: op("add", [a, op("div", [_scaled(b, value), c])]),
        by_parts=True,
    )


@lowers("lerp.Scalar", "lerp.Tensor")
def lerp(ctx: LoweringContext, x: Any, y: Any, weight: Any) -> Lowered:
    def compute(a: Value, b: Value, w: Value) -> Value:
        """As ATen: from the nearer end, so that weight 1 gives exactly b."""
        difference = op("sub", [b, a])
        from_start = fused(w, difference, a)
        from_end = fused(op("sub", [w, constant(1, w.dtype)]), difference, b)
        size = op("abs", [w])
        near = Op("lt", [size, constant(0.5, size.dtype)])
        return Op("where", [near, from_start, from_end])

    return elementwise(ctx, [x, y, weight], compute, by_parts=True)


def _activation(
    name: str, *, by_parts: bool = False
) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Register a function of the promoted operand and the op's scalar arguments."""

    def register(compute: Callable[..., Value]) -> Callable[..., Value]:
        arity = len(find_overload(name)._schema.arguments)

        def unary(ctx: LoweringContext, x: TensorExpr, *scalars: Any) -> Lowered:
            if x.dtype is DType.bool_:
                return None  # an error, which ATen raises
            return elementwise(ctx, [x], lambda a: compute(a, *scalars), by_parts=by_parts)

        rule = unary
        if arity == 1:

            def rule(ctx: LoweringContext, x: TensorExpr) -> Lowered:
                return unary(ctx, x)

        lowers(name)(rule)
        return compute

    return register


def _number(like: Value, value: Any) -> Value:
    return constant(value, like.dtype)


@_activation("relu")
def relu(a: Value) -> Value:
    return Op("maximum", [a, _number(a, 0)])


@_activation("gelu")
def gelu(a: Value, approximate: str = "none") -> Value:
    half = Op("mul", [a, _number(a, 0.5)])
    if approximate == "tanh":
        cube = Op("mul", [Op("mul", [a, a]), a])
        inner = fused(cube, _number(a, 0.044715), a)
        bent = Op("tanh", [Op("mul", [_number(a, math.sqrt(2 / math.pi)), inner])])
    else:
        bent = Op("erf", [Op("mul", [a, _number(a, math.sqrt(0.5))])])
    return Op("mul", [half, Op("add", [_number(a, 1), bent])])  # which does not cancel near -1


@_activation("silu", by_parts=True)
def silu(a: Value) -> Value:
    return op("div", [a, op("add", [_number(a, 1), op("exp", [op("neg", [a])])])])


@_activation("leaky_relu")
def leaky_relu(a: Value, slope: Any) -> Value:
    positive = Op("gt", [a, _number(a, 0)])
    return Op("where", [positive, a, Op("mul", [a, _number(a, slope)])])


@_activation("hardsigmoid")
def hardsigmoid(a: Value) -> Value:
    shifted = Op("add", [a, _number(a, 3)])
    limited = Op("minimum", [Op("maximum", [shifted, _number(a, 0)]), _number(a, 6)])
    return Op("div", [limited, _number(a, 6)])


@_activation("hardswish")
def hardswish(a: Value) -> Value:
    shifted = Op("add", [a, _number(a, 3)])
    limited = Op("minimum", [Op("maximum", [shifted, _number(a, 0)]), _number(a, 6)])
    return Op("div", [Op("mul", [a, limited]), _number(a, 6)])


@_activation("elu")
def elu(a: Value, alpha: Any, scale: Any, input_scale: Any) -> Value:
    bent = Op("expm1", [Op("mul", [a, _number(a, input_scale)])])
    negative = Op("mul", [bent, _number(a, alpha * scale)])
    positive = Op("mul", [a, _number(a, scale)])
    return Op("where", [Op("gt", [a, _number(a, 0)]), positive, negative])


@_activation("softplus")
def softplus(a: Value, beta: Any, threshold: Any) -> Value:
    scaled = Op("mul", [a, _number(a, beta)])
    soft = Op("div", [Op("log1p", [Op("exp", [scaled])]), _number(a, beta)])
    return Op("where", [Op("gt", [scaled, _number(a, threshold)]), a, soft])


@lowers("_to_copy")
def to_copy(
    ctx: LoweringContext,
    x: TensorExpr,
    dtype: torch.dtype | None,
    layout: Any,
    device: Any,
    pin_memory: Any,
    non_blocking: Any,
    memory_format: Any,
) -> Lowered:
    source = _argument_device(ctx)
    if ctx.result.device != source:
        return None
    target = ctx.dtype_of(ctx.result)
    dims = dimensions(ctx.result.shape)
    return ctx.pointwise(dims, cast(x.at([dim.expr for dim in dims]), target))


def _argument_device(ctx: LoweringContext) -> torch.device:
    value = ctx.argument(0)
    return value.device if isinstance(value, torch.Tensor) else torch.device("cpu")


@lowers("clone")
def clone(ctx: LoweringContext, x: TensorExpr, memory_format: Any) -> Lowered:
    dims = dimensions(ctx.result.shape)
    return ctx.pointwise(dims, x.at([dim.expr for dim in dims]))


@lowers("copy")
def copy(ctx: LoweringContext, x: TensorExpr, source: TensorExpr, non_blocking: Any) -> Lowered:
    dims = dimensions(ctx.result.shape)
    return ctx.pointwise(dims, cast(source.broadcast_at([d.expr for d in dims]), x.dtype))
