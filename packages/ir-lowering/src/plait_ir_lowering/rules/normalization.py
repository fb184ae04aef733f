"""Softmax and the normalisations, as reductions with their elementwise neighbours."""

from __future__ import annotations

from typing import Any

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.index import IndexExpr
from plait_ir_lowering.ir.ops import ReductionKind
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.complex_formulas import fused
from plait_ir_lowering.rules.reductions import (
    accumulation_dtype,
    axes_of,
    cast_elements,
    count,
    mean_and_deviation,
)
from plait_ir_lowering.tensors import TensorExpr, dimensions


def _shifted(ctx: LoweringContext, x: TensorExpr, axis: int) -> tuple[TensorExpr, Any]:
    """`x` less its maximum along `axis`, which keeps exponentials from overflowing."""
    along = axes_of(axis, len(x.dims))
    wide = cast_elements(x, accumulation_dtype(x.dtype))
    largest = ctx.reduce(wide, along, ReductionKind.MAX, keepdim=True, name="max")
    places = [dim.expr for dim in x.dims]
    return TensorExpr(x.dims, Op("sub", [wide.value, largest.broadcast_at(places)])), along


@lowers("_softmax")
def softmax(ctx: LoweringContext, x: TensorExpr, axis: int, half_to_float: bool) -> Lowered:
    if not x.dims or count(x, range(len(x.dims))) == 0:
        return None
    shifted, along = _shifted(ctx, x, axis)
    powers = ctx.intermediate(x.dims, Op("exp", [shifted.value]), "exp")
    total = ctx.reduce(powers, along, ReductionKind.SUM, keepdim=True, name="sum")
    dims = dimensions(x.shape)
    places = [dim.expr for dim in dims]
    return ctx.pointwise(dims, Op("div", [powers.at(places), total.broadcast_at(places)]))


@lowers("_log_softmax")
def log_softmax(ctx: LoweringContext, x: TensorExpr, axis: int, half_to_float: bool) -> Lowered:
    if not x.dims or count(x, range(len(x.dims))) == 0:
        return None
    shifted, along = _shifted(ctx, x, axis)
    powers = TensorExpr(x.dims, Op("exp", [shifted.value]))
    total = ctx.reduce(powers, along, ReductionKind.SUM, keepdim=True, name="sum")
    dims = dimensions(x.shape)
    places = [dim.expr for dim in dims]
    logarithm = Op("log", [total.broadcast_at(places)])
    return ctx.pointwise(dims, Op("sub", [shifted.at(places), logarithm]))


@lowers("native_layer_norm")
def layer_norm(
    ctx: LoweringContext,
    x: TensorExpr,
    normalized_shape: Any,
    weight: TensorExpr | None,
    bias: TensorExpr | None,
    eps: float,
) -> Lowered:
    rank = len(x.dims)
    along = tuple(range(rank - len(normalized_shape), rank))
    mean, deviation = mean_and_deviation(ctx, x, along)
    wide = mean.dtype
    number = constant(count(x, along), wide)
    kept = dimensions(deviation.shape)
    variance = Op("div", [deviation.at([d.expr for d in kept]), number])
    inverse = Op("rsqrt", [Op("add", [variance, constant(eps, wide)])])
    scale = ctx.intermediate(kept, inverse, "rstd")
    dims = dimensions(x.shape)
    places = [dim.expr for dim in dims]
    centred = Op("sub", [cast(x.at(places), wide), mean.broadcast_at(places)])
    steady = Op("mul", [centred, scale.broadcast_at(places)])
    value = _affine(steady, weight, bias, places)
    fakes = ctx.results
    statistics = (
        cast_elements(mean, ctx.dtype_of(fakes[1])),
        cast_elements(scale, ctx.dtype_of(fakes[2])),
    )
    return ctx.pointwise(dims, value), *statistics


@lowers("_native_batch_norm_legit_no_training")
def batch_norm_inference(
    ctx: LoweringContext,
    x: TensorExpr,
    weight: TensorExpr | None,
    bias: TensorExpr | None,
    mean: TensorExpr,
    variance: TensorExpr,
    momentum: float,
    eps: float,
) -> Lowered:
    wide = accumulation_dtype(x.dtype)
    dims = dimensions(x.shape)
    places = [dim.expr for dim in dims]
    channel = places[1:2]
    spread = Op("add", [cast(variance.at(channel), wide), constant(eps, wide)])
    centred = Op("sub", [cast(x.at(places), wide), cast(mean.at(channel), wide)])
    value = _affine(Op("mul", [centred, Op("rsqrt", [spread])]), weight, bias, channel)
    return ctx.pointwise(dims, value), None, None


def _affine(
    x: Value, weight: TensorExpr | None, bias: TensorExpr | None, places: list[IndexExpr]
) -> Value:
    """`x * weight + bias`, of those there are."""
    scale = None if weight is None else cast(weight.broadcast_at(places), x.dtype)
    shift = None if bias is None else cast(bias.broadcast_at(places), x.dtype)
    if scale is None:
        return x if shift is None else Op("add", [x, shift])
    return Op("mul", [x, scale]) if shift is None else fused(x, scale, shift)
