"""The largest element of each window of an image, and where it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from plait_ir_lowering.context import LoweringContext, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Pointwise
from plait_ir_lowering.ir.index import ZERO, IndexExpr, Var, bounds
from plait_ir_lowering.ir.ops import ReductionKind
from plait_ir_lowering.ir.values import IndexValue, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.averages import shares
from plait_ir_lowering.rules.gathering import integer
from plait_ir_lowering.rules.windows import Span, existing, numbers_of, result_dims, window_element
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_ir_lowering.torch_types import to_torch_dtype

_FEW = 27
"""Up to so many elements of a window are compared one by one, which vectorises."""


@lowers("max_pool2d_with_indices")
def max_pool2d(ctx: LoweringContext, x: TensorExpr, *rest: Any) -> Lowered:
    return _max_pool(ctx, x, 2, *rest)


@lowers("max_pool3d_with_indices")
def max_pool3d(ctx: LoweringContext, x: TensorExpr, *rest: Any) -> Lowered:
    return _max_pool(ctx, x, 3, *rest)


def _max_pool(
    ctx: LoweringContext,
    x: TensorExpr,
    rank: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Lowered:
    sizes, pads = numbers_of(kernel, rank), numbers_of(padding, rank)
    steps = numbers_of(stride, rank) if stride else sizes
    spreads = numbers_of(dilation, rank)
    dims = result_dims(ctx)
    spans = []
    for n, (dim, extent) in enumerate(zip(dims[-rank:], x.shape[-rank:], strict=True)):
        spans.append(Span(extent.as_int(), dim.expr * steps[n] - pads[n], sizes[n], spreads[n]))
    return _largest(ctx, x, dims, spans)


@lowers("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(ctx: LoweringContext, x: TensorExpr, size: Sequence[int]) -> Lowered:
    dims = result_dims(ctx)
    return _largest(ctx, x, dims, shares(x.shape[-len(size) :], dims[-len(size) :]))


def _largest(
    ctx: LoweringContext, x: TensorExpr, dims: tuple[Var, ...], spans: Sequence[Span]
) -> Lowered:
    """The first of the largest in each window, or the last NaN, and its place in the image."""
    fakes = ctx.results
    if not ctx.result.numel() or x.dtype.kind == "complex" or x.dtype is DType.bool_:
        return None
    if math.prod(span.size for span in spans) <= _FEW:
        best, place = _compared(x, dims, spans)
        return (
            ctx.define(Pointwise(dims, best), fakes[0]),
            ctx.define(Pointwise(dims, place), fakes[1]),
        )
    return _combined(ctx, x, dims, spans)


def _lowest(dtype: DType) -> Value:
    if dtype.is_float:
        return constant(-math.inf, dtype)
    return constant(torch.iinfo(to_torch_dtype(dtype)).min, dtype)


def _flat(spans: Sequence[Span], places: Sequence[IndexExpr]) -> IndexExpr:
    """The place in the image, counted in row-major order."""
    found = ZERO
    for span, place in zip(spans, places, strict=True):
        found = found * span.extent + place
    return found


def _compared(x: TensorExpr, dims: tuple[Var, ...], spans: Sequence[Span]) -> tuple[Value, Value]:
    """Element by element, as ATen does it."""
    around = [dim.expr for dim in dims[: len(dims) - len(spans)]]
    best = _lowest(x.dtype)
    place = _first(spans)
    for numbers in product(*(range(span.size) for span in spans)):
        element = window_element(x, around, spans, numbers, _lowest(x.dtype))
        places = [span.place(number) for span, number in zip(spans, numbers, strict=True)]
        larger = Op("gt", [element, best])
        if x.dtype.is_float:
            larger = Op("logical_or", [larger, Op("isnan", [element])])
        best = Op("where", [larger, element, best])
        place = Op("where", [larger, IndexValue(_flat(spans, places)), place])
    return best, place


def _first(spans: Sequence[Span]) -> Value:
    """The first element of a window that exists: what wins where nothing is larger than -inf."""
    total: Value | None = None
    for span in spans:
        place: Value = IndexValue(span.start)
        low = bounds(span.start)[0]
        if low is None or low < 0:
            is_before = Op("lt", [place, integer(0)])
            place = Op("where", [is_before, IndexValue(span.start % span.step), place])
        if total is None:
            total = place
        else:
            total = Op("add", [Op("mul", [total, integer(span.extent)]), place])
    assert total is not None, "windows have axes"
    return total


def _values(
    ctx: LoweringContext, x: TensorExpr, dims: tuple[Var, ...], spans: Sequence[Span]
) -> TensorExpr:
    """The largest in each window: along the last axis last, so that the others vectorise."""
    width = Var(dims[-1].name, spans[-1].extent)
    whole = Span(spans[-1].extent, width.expr, 1)
    lines = (((*dims[:-1], width), [*spans[:-1], whole]), (dims, spans[-1:]))
    for over, windows in lines:
        reduced = dimensions([span.size for span in windows], "r")
        around = [dim.expr for dim in over[: len(over) - len(windows)]]
        numbers = [var.expr for var in reduced]
        element = window_element(x, around, windows, numbers, _lowest(x.dtype))
        x = ctx.combined(over, reduced, ReductionKind.MAX, element, "largest")
    return x


def _combined(
    ctx: LoweringContext, x: TensorExpr, dims: tuple[Var, ...], spans: Sequence[Span]
) -> Lowered:
    """By two reductions: the largest, and the least place of an equal one.

    The last NaN is at the least of the places' negatives.
    """
    around = [dim.expr for dim in dims[: len(dims) - len(spans)]]
    reduced = dimensions([span.size for span in spans], "r")
    numbers = [var.expr for var in reduced]
    element = window_element(x, around, spans, numbers, _lowest(x.dtype))
    best = _values(ctx, x, dims, spans).at([dim.expr for dim in dims])
    places = [span.place(number) for span, number in zip(spans, numbers, strict=True)]
    place: Value = IndexValue(_flat(spans, places))
    nowhere = integer(math.prod(span.extent for span in spans))
    key = Op("where", [Op("eq", [element, best]), place, nowhere])
    if x.dtype.is_float:
        last = Op("where", [Op("isnan", [element]), Op("neg", [place]), nowhere])
        key = Op("where", [Op("isnan", [best]), last, key])
    mask = existing(spans, places)
    if mask is not None:
        key = Op("where", [mask, key, nowhere])
    found = ctx.combined(dims, reduced, ReductionKind.MIN, key, "place")
    where = found.at([dim.expr for dim in dims])
    fakes = ctx.results
    return (
        ctx.define(Pointwise(dims, best), fakes[0]),
        ctx.define(Pointwise(dims, Op("abs", [where])), fakes[1]),
    )
