"""Scans: running sums, products, extrema and log-sums along one dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Pointwise, Scan
from plait_ir_lowering.ir.ops import PARTS
from plait_ir_lowering.ir.values import IndexValue, Op, Value, carried, packed
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.chunked_scans import (
    LONGEST_BLOCK,
    chunk_of,
    chunked_scan,
    has_many_rows,
    scans_in_loops,
)
from plait_ir_lowering.rules.complex_exponentials import logarithm_of_sum
from plait_ir_lowering.rules.complex_formulas import op
from plait_ir_lowering.rules.complex_numbers import pair, parts
from plait_ir_lowering.tensors import TensorExpr, dimensions


def scan(
    ctx: LoweringContext,
    values: Sequence[TensorExpr],
    axis: int,
    combine: Sequence[Value],
    results: Sequence[tuple[Value, torch.Tensor]],
) -> tuple[TensorExpr, ...]:
    """Buffers of what `values`, all of one shape, are along `axis` when they are combined.

    `combine` gives the next state over the locals %a and %b, each of `results` what a buffer
    like the fake tensor gets of it. Several buffers are scans of their own, which scheduling joins.
    """
    dims = dimensions(values[0].shape)
    places = [dim.expr for dim in dims]
    value = packed([each.at(places) for each in values])
    joined = packed(combine)
    return tuple(
        ctx.define(Scan(dims, dims[axis], value, joined, result), like) for result, like in results
    )


def fits(ctx: LoweringContext, x: TensorExpr, axis: int) -> bool:
    """Whether loops scan as fast as ATen does: on a GPU rows that one block holds, or many."""
    if ctx.result.device.type == "cpu":
        return True
    extent = x.shape[axis]
    short = extent.is_constant and extent.as_int() <= LONGEST_BLOCK
    return short or scans_in_loops(x, axis)


def state_dtype(ctx: LoweringContext, dtype: DType) -> DType:
    """What ATen carries along: f64 for f32 on a CPU, otherwise f32 for narrower floats."""
    if dtype is DType.f32 and ctx.result.device.type == "cpu":
        return DType.f64
    return DType.f32 if dtype.is_reduced_precision else dtype


def _along(x: TensorExpr, axis: int) -> int:
    return axis + len(x.dims) if axis < 0 else axis


def _whole(ctx: LoweringContext, x: TensorExpr) -> TensorExpr:
    """A tensor without dimensions is its own running sum."""
    return ctx.pointwise((), x.value)


def _accumulated(ctx: LoweringContext, x: TensorExpr, axis: int, operation: str) -> Lowered:
    result = ctx.dtype_of(ctx.result)
    if result is DType.bool_ or (x.dtype in PARTS and result not in PARTS):
        return None
    if not x.dims:
        return _whole(ctx, x)
    along = _along(x, axis)
    chunk = _chunk(ctx, x, along)
    if chunk is None and not fits(ctx, x, along):
        return None
    if result in PARTS:
        return _scanned_parts(ctx, x, along, lambda a, b: op(operation, [a, b]))
    wide = state_dtype(ctx, result)
    value = cast(cast(x.value, result), wide)
    if wide.is_float and operation == "add":  # ATen adds to 0, so that a first -0.0 becomes 0.0
        value = Op("add", [value, constant(0.0, wide)])
    if chunk is not None:
        return chunked_scan(ctx, x, value, along, operation, chunk)
    (a,), (b,) = carried("a", [wide]), carried("b", [wide])
    combine = Op(operation, [a, b])
    found = scan(
        ctx, [TensorExpr(x.dims, value)], along, [combine], [(cast(a, result), ctx.result)]
    )
    return found[0]


def _chunk(ctx: LoweringContext, x: TensorExpr, axis: int) -> int | None:
    """In chunks of how many elements rows are scanned; None where they are as wholes."""
    extent = x.shape[axis]
    on_cpu = ctx.result.device.type == "cpu"
    if on_cpu or not extent.is_constant or extent.as_int() <= LONGEST_BLOCK:
        return None
    if has_many_rows(x, axis) or not ctx.result.is_contiguous():
        return None
    return chunk_of(x, axis)


def _scanned_parts(
    ctx: LoweringContext, x: TensorExpr, axis: int, combine: Callable[[Value, Value], Value]
) -> TensorExpr:
    """Of complex numbers, with both parts as ATen's: those of c64 carried along in f64."""
    result = ctx.dtype_of(ctx.result)
    kind = state_dtype(ctx, PARTS[result])
    real, imaginary = parts(cast(x.value, result))
    elements = [TensorExpr(x.dims, cast(each, kind)) for each in (real, imaginary)]
    a, b = carried("a", [kind, kind]), carried("b", [kind, kind])
    state = parts(combine(pair(*a), pair(*b)))
    found = cast(pair(*a), result)
    return scan(ctx, elements, axis, state, [(found, ctx.result)])[0]


@lowers("cumsum")
def cumsum(ctx: LoweringContext, x: TensorExpr, axis: int, dtype: torch.dtype | None) -> Lowered:
    return _accumulated(ctx, x, axis, "add")


@lowers("cumprod")
def cumprod(ctx: LoweringContext, x: TensorExpr, axis: int, dtype: torch.dtype | None) -> Lowered:
    return _accumulated(ctx, x, axis, "mul")


def _running_extreme(ctx: LoweringContext, x: TensorExpr, axis: int, comparison: str) -> Lowered:
    """The extreme so far and the position of the last element that equals it, or of a NaN."""
    values, positions = ctx.results
    if x.dtype.kind == "complex":
        return None
    if not x.dims:
        zero = Pointwise((), constant(0, DType.i64))
        return ctx.define(Pointwise((), x.value), values), ctx.define(zero, positions)
    along = _along(x, axis)
    if not fits(ctx, x, along):
        return None
    wide = DType.f32 if x.dtype.is_reduced_precision else x.dtype
    wide = DType.i8 if wide is DType.bool_ else wide  # a register for a bool need not be ordered
    dtypes = [wide, DType.i64]
    a, b = carried("a", dtypes), carried("b", dtypes)
    takes: Value = Op(comparison, [b[0], a[0]])
    if wide.is_float:
        takes = Op("logical_or", [takes, Op("isnan", [b[0]])])
    combine = [Op("where", [takes, new, old]) for new, old in zip(b, a, strict=True)]
    at = TensorExpr(x.dims, IndexValue(x.dims[along].expr))
    elements = TensorExpr(x.dims, cast(x.value, wide))
    results = [(cast(a[0], x.dtype), values), (a[1], positions)]
    return scan(ctx, [elements, at], along, combine, results)


@lowers("cummax")
def cummax(ctx: LoweringContext, x: TensorExpr, axis: int) -> Lowered:
    return _running_extreme(ctx, x, axis, "ge")


@lowers("cummin")
def cummin(ctx: LoweringContext, x: TensorExpr, axis: int) -> Lowered:
    return _running_extreme(ctx, x, axis, "le")


@lowers("logcumsumexp")
def logcumsumexp(ctx: LoweringContext, x: TensorExpr, axis: int) -> Lowered:
    result = ctx.dtype_of(ctx.result)
    if not (result.is_float or result in PARTS) or (x.dtype in PARTS) != (result in PARTS):
        return None
    if not x.dims:
        return _whole(ctx, x)
    along = _along(x, axis)
    if not fits(ctx, x, along):
        return None
    if result in PARTS:
        return _scanned_parts(ctx, x, along, lambda a, b: logarithm_of_sum(b, a))
    wide = state_dtype(ctx, result)
    element = Op("add", [cast(cast(x.value, result), wide), constant(0.0, wide)])
    (a,), (b,) = carried("a", [wide]), carried("b", [wide])
    found = scan(
        ctx,
        [TensorExpr(x.dims, element)],
        along,
        [_log_of_sum(a, b)],
        [(cast(a, result), ctx.result)],
    )
    return found[0]


def _log_of_sum(a: Value, b: Value) -> Value:
    """log(exp(a) + exp(b)) as ATen computes it; of equal infinities, that infinity."""
    least, most = Op("minimum", [a, b]), Op("maximum", [a, b])
    total = Op("add", [Op("log1p", [Op("exp", [Op("sub", [least, most])])]), most])
    infinite = constant(math.inf, a.dtype)
    endless = Op("eq", [Op("abs", [least]), infinite])
    same = Op("logical_and", [endless, Op("eq", [least, most])])
    return Op("where", [same, b, total])
