"""Averages over windows of images, and over equal shares of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import IndexExpr, Var, bounds
from plait_ir_lowering.ir.ops import ReductionKind
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.gathering import nothing
from plait_ir_lowering.rules.reductions import accumulation_dtype
from plait_ir_lowering.rules.windows import (
    Span,
    count_along,
    numbers_of,
    result_dims,
    window_element,
)
from plait_ir_lowering.tensors import TensorExpr, dimensions


@lowers("avg_pool2d")
def avg_pool2d(ctx: LoweringContext, x: TensorExpr, *rest: Any) -> Lowered:
    return _avg_pool(ctx, x, 2, *rest)


@lowers("avg_pool3d")
def avg_pool3d(ctx: LoweringContext, x: TensorExpr, *rest: Any) -> Lowered:
    return _avg_pool(ctx, x, 3, *rest)


def _avg_pool(
    ctx: LoweringContext,
    x: TensorExpr,
    rank: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Lowered:
    if x.dtype.kind == "complex":
        return None
    if not ctx.result.numel():
        return nothing(ctx)
    sizes, pads = numbers_of(kernel, rank), numbers_of(padding, rank)
    steps = numbers_of(stride, rank) if stride else sizes
    dims = result_dims(ctx)
    spans = [
        Span(extent.as_int(), dim.expr * step - pad, size)
        for dim, extent, step, pad, size in zip(
            dims[-rank:], x.shape[-rank:], steps, pads, sizes, strict=True
        )
    ]
    counts = pool_counts(spans, pads, count_include_pad, divisor)
    return averaged(ctx, x, dims, spans, [counts])


def pool_counts(
    spans: Sequence[Span], pads: Sequence[int], count_include_pad: bool, divisor: int | None
) -> list[Value | int]:
    """What the sums of windows are divided by: the product of these."""
    if divisor is not None:
        return [divisor]
    if count_include_pad:
        return [_count(span, span.extent + pad, pad) for span, pad in zip(spans, pads, strict=True)]
    return [_count(span, span.extent, 0) for span in spans]


def _count(span: Span, limit: int, before: int) -> Value | int:
    """The elements of a window that count, as a number where that is the same for all."""
    low, high = bounds(span.start)
    if low is not None and low >= -before and high is not None and high + span.size <= limit:
        return span.size
    return count_along(span, limit, before)


@lowers("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(ctx: LoweringContext, x: TensorExpr, size: Sequence[int]) -> Lowered:
    if x.dtype.kind == "complex":
        return None
    if not ctx.result.numel():
        return nothing(ctx)
    dims = result_dims(ctx)
    spans = shares(x.shape[-len(size) :], dims[-len(size) :])
    counts = [share_count(span) for span in spans]
    # ATen divides once for each axis.
    return averaged(ctx, x, dims, spans, [[count] for count in counts])


def share_count(span: Span) -> Value | int:
    return span.size if span.stop is None else count_along(span)


def shares(extents: Sequence[IndexExpr], dims: Sequence[Var]) -> list[Span]:
    """As many windows as results, which cover an axis; neighbours may overlap in one element."""
    found = []
    for extent, dim in zip(extents, dims, strict=True):
        before, after = extent.as_int(), dim.extent.as_int()
        start = dim.expr * before // after
        if before % after == 0:
            found.append(Span(before, start, before // after))
            continue
        ends = [(-(-(n + 1) * before // after), n * before // after) for n in range(after)]
        longest = max(stop - first for stop, first in ends)
        stop = ((dim.expr + 1) * before - 1) // after + 1
        found.append(Span(before, start, longest, 1, stop))
    return found


_FEW = 4
"""Windows of more elements are added up along their last axis last: the others are read in
vectors, and what overlaps is added up once."""


def averaged(
    ctx: LoweringContext,
    x: TensorExpr,
    dims: tuple[Var, ...],
    spans: Sequence[Span],
    divisors: Sequence[Sequence[Value | int]],
) -> Lowered:
    """The sum of each window, divided by the product of each of `divisors` in turn."""
    wide = accumulation_dtype(x.dtype)
    if prod(span.size for span in spans) > _FEW:
        width = Var(dims[-1].name, spans[-1].extent)
        whole = Span(spans[-1].extent, width.expr, 1)
        x = _summed(ctx, x, (*dims[:-1], width), [*spans[:-1], whole])
        spans = spans[-1:]
    summed = _summed(ctx, x, dims, spans)
    value = summed.at([dim.expr for dim in dims])
    for counts in divisors:
        name = "div" if wide.is_float else "truncdiv"
        value = Op(name, [value, cast(_product(counts), wide)])
    return ctx.pointwise(dims, value)


def _summed(
    ctx: LoweringContext, x: TensorExpr, dims: tuple[Var, ...], spans: Sequence[Span]
) -> TensorExpr:
    wide = accumulation_dtype(x.dtype)
    reduced = dimensions([span.size for span in spans], "r")
    around = [dim.expr for dim in dims[: len(dims) - len(spans)]]
    numbers = [var.expr for var in reduced]
    element = cast(window_element(x, around, spans, numbers, constant(0, x.dtype)), wide)
    return ctx.combined(dims, reduced, ReductionKind.SUM, element, "sum")


def _product(counts: Sequence[Value | int]) -> Value:
    """Known numbers are one."""
    total: Value = constant(prod(each for each in counts if isinstance(each, int)), DType.i64)
    for each in counts:
        if isinstance(each, Value):
            total = Op("mul", [total, each])
    return total
