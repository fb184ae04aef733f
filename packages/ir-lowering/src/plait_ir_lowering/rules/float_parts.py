"""Floats by their bits: neighbours, and mantissas with exponents."""

from __future__ import annotations

from plait_ir_lowering.context import LoweringContext, cast
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Pointwise
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.elementwise import elementwise
from plait_ir_lowering.rules.formulas import add, is_below, is_equal, mul, number, sub, where
from plait_ir_lowering.tensors import TensorExpr, dimensions

_BITS = {DType.f32: DType.i32, DType.f64: DType.i64}
_SMALLEST_NORMAL = 2.0**-1022
_MANTISSA = (1 << 52) - 1


def _next(x: Value, toward: Value) -> Value:
    """Floats of one sign are in the order of their bits."""
    bits = Op("bitcast", [x], _BITS[x.dtype])
    one = number(bits, 1)
    grows = Op("eq", [Op("lt", [x, toward]), Op("gt", [x, number(x, 0)])])
    moved: Value = Op("bitcast", [where(grows, add(bits, one), sub(bits, one))], x.dtype)
    least = Op("copysign", [Op("bitcast", [one], x.dtype), toward])
    moved = where(is_equal(x, 0), least, moved)
    moved = where(Op("eq", [x, toward]), toward, moved)
    odd = Op("logical_or", [Op("isnan", [x]), Op("isnan", [toward])])
    return where(odd, add(x, toward), moved)


@lowers("nextafter")
def nextafter(ctx: LoweringContext, x: TensorExpr, toward: TensorExpr) -> Lowered:
    if x.dtype not in _BITS or toward.dtype is not x.dtype:
        return None
    return elementwise(ctx, [x, toward], _next)


def _parts(x: Value) -> tuple[Value, Value]:
    """Of an f64: the mantissa, from 0.5 to 1, and the exponent, as i32."""
    is_small = is_below(Op("abs", [x]), _SMALLEST_NORMAL)
    bits = Op("bitcast", [where(is_small, mul(x, number(x, 2.0**54)), x)], DType.i64)
    biased = Op("bitwise_and", [Op("rshift", [bits, number(bits, 52)]), number(bits, 0x7FF)])
    bias = where(is_small, number(bits, 1022 + 54), number(bits, 1022))
    rest = Op("bitwise_and", [bits, number(bits, _MANTISSA | -(1 << 63))])
    scaled = Op("bitwise_or", [rest, number(bits, 1022 << 52)])
    finite = Op("lt", [Op("abs", [x]), number(x, float("inf"))])
    whole = Op("logical_and", [finite, Op("ne", [x, number(x, 0)])])
    mantissa = where(whole, Op("bitcast", [scaled], DType.f64), x)
    exponent = where(whole, sub(biased, bias), number(bits, 0))
    return mantissa, cast(exponent, DType.i32)


@lowers("frexp.Tensor")
def frexp(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    if not x.dtype.is_float:
        return None  # an error, which ATen raises
    dims = dimensions(x.shape)
    mantissa, exponent = _parts(cast(x.at([dim.expr for dim in dims]), DType.f64))
    first, second = ctx.results
    found = ctx.define(Pointwise(dims, cast(mantissa, x.dtype)), first)
    return found, ctx.define(Pointwise(dims, exponent), second)
