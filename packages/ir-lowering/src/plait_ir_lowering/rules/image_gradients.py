"""Gradients of averages over windows, and of images of another size.

Each element of an image gathers from the results that it is part of: nothing is written twice, and
sums have one order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import IndexExpr, Var
from plait_ir_lowering.ir.ops import ReductionKind
from plait_ir_lowering.ir.values import IndexValue, Masked, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.averages import averaged, pool_counts, share_count, shares
from plait_ir_lowering.rules.gathering import as_value, nothing
from plait_ir_lowering.rules.image_axes import ImageAxis
from plait_ir_lowering.rules.nearest import computed_place, kernels_agree, sources
from plait_ir_lowering.rules.reductions import accumulation_dtype
from plait_ir_lowering.rules.upsampling import Taps, cubic_taps, linear_taps
from plait_ir_lowering.rules.windows import Span, existing, numbers_of, result_dims, windows_at
from plait_ir_lowering.tensors import TensorExpr, dimensions

_TapsOf: TypeAlias = Callable[[ImageAxis, bool, DType], Taps]

_SLACK = 1e-3
"""How far places in float64 may be from those that loops compute."""
_MOST_RESULTS = 256
"""Of so many results along an axis an element may be part."""


@lowers("avg_pool2d_backward")
def avg_pool2d_backward(
    ctx: LoweringContext, grad: TensorExpr, x: TensorExpr, *rest: Any
) -> Lowered:
    return _avg_pool_backward(ctx, grad, x, 2, *rest)


@lowers("avg_pool3d_backward")
def avg_pool3d_backward(
    ctx: LoweringContext, grad: TensorExpr, x: TensorExpr, *rest: Any
) -> Lowered:
    return _avg_pool_backward(ctx, grad, x, 3, *rest)


def _avg_pool_backward(
    ctx: LoweringContext,
    grad: TensorExpr,
    x: TensorExpr,
    rank: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Lowered:
    if not grad.dtype.is_float:
        return None
    if not ctx.result.numel():
        return nothing(ctx)
    sizes, pads = numbers_of(kernel, rank), numbers_of(padding, rank)
    steps = numbers_of(stride, rank) if stride else sizes
    windows = dimensions(grad.shape)
    counts = pool_counts(
        [
            Span(extent.as_int(), dim.expr * step - pad, size)
            for dim, extent, step, pad, size in zip(
                windows[-rank:], x.shape[-rank:], steps, pads, sizes, strict=True
            )
        ],
        pads,
        count_include_pad,
        divisor,
    )
    dims = result_dims(ctx)
    spans = [
        windows_at(dim.expr, extent.as_int(), step, pad, size)
        for dim, extent, step, pad, size in zip(
            dims[-rank:], grad.shape[-rank:], steps, pads, sizes, strict=True
        )
    ]
    return _shared_out(ctx, grad, windows, counts, dims, spans)


@lowers("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(ctx: LoweringContext, grad: TensorExpr, x: TensorExpr) -> Lowered:
    if not grad.dtype.is_float:
        return None
    if not ctx.result.numel():
        return nothing(ctx)
    rank = 2 if "2d" in ctx.target._schema.name else 3
    windows, dims = dimensions(grad.shape), result_dims(ctx)
    counts = [share_count(span) for span in shares(x.shape[-rank:], windows[-rank:])]
    spans = shares(grad.shape[-rank:], dims[-rank:])
    return _shared_out(ctx, grad, windows, counts, dims, spans)


def _shared_out(
    ctx: LoweringContext,
    grad: TensorExpr,
    windows: tuple[Var, ...],
    counts: Sequence[Value | int],
    dims: tuple[Var, ...],
    spans: Sequence[Span],
) -> Lowered:
    """The gradients of windows, each divided by its number of elements, added up."""
    if all(isinstance(count, int) for count in counts):
        return averaged(ctx, grad, dims, spans, [counts])
    wide = accumulation_dtype(grad.dtype)
    part = cast(grad.at([dim.expr for dim in windows]), wide)
    for count in counts:
        number = count if isinstance(count, Value) else constant(count, DType.i64)
        part = Op("div", [part, cast(number, wide)])
    return averaged(ctx, ctx.intermediate(windows, part, "part"), dims, spans, [])


@lowers("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward")
def nearest_backward(
    ctx: LoweringContext, grad: TensorExpr, size: Any, before: Any, *scales: float | None
) -> Lowered:
    return _nearest_backward(ctx, grad, scales, 0.0)


@lowers(
    "_upsample_nearest_exact1d_backward",
    "_upsample_nearest_exact2d_backward",
    "_upsample_nearest_exact3d_backward",
)
def nearest_exact_backward(
    ctx: LoweringContext, grad: TensorExpr, size: Any, before: Any, *scales: float | None
) -> Lowered:
    return _nearest_backward(ctx, grad, scales, 0.5)


def _nearest_backward(
    ctx: LoweringContext, grad: TensorExpr, scales: Sequence[float | None], centre: float
) -> Lowered:
    """Where kernels name the elements that a division of integers does: shares of the results."""
    if not grad.dtype.is_float:
        return None
    if not ctx.result.numel() or not all(extent.as_int() for extent in grad.shape):
        return nothing(ctx)
    axes = _axes(ctx, grad, scales)
    dims = result_dims(ctx)
    shared = [
        _shares_of(axis, dim, centre) for axis, dim in zip(axes, dims[-len(axes) :], strict=True)
    ]
    spans = [span for span in shared if span is not None]
    if len(spans) == len(axes):
        return averaged(ctx, grad, dims, spans, [])

    def taps(axis: ImageAxis, align_corners: bool, dtype: DType) -> Taps:
        return [(computed_place(axis, centre), constant(1, dtype))]

    if not all(kernels_agree(axis, centre) for axis in axes):
        return None
    return _weighted_backward(ctx, grad, False, scales, taps, (0, 1))


def _shares_of(axis: ImageAxis, dim: Var, centre: float) -> Span | None:
    """The results that an element is, where a division of integers says which element each is."""
    before, after = axis.before.as_int(), axis.after.as_int()
    counted = torch.arange(after)
    exact = counted * before // after
    found = sources(axis, counted, centre)
    if not all(torch.equal(each.clamp_max(before - 1), exact) for each in found):
        return None
    first = (dim.expr * after + (before - 1)) // before
    stop = None if after % before == 0 else ((dim.expr + 1) * after - 1) // before + 1
    return Span(after, first, int(torch.bincount(exact).max()), 1, stop)


@lowers(
    "upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_trilinear3d_backward"
)
def linear_backward(
    ctx: LoweringContext,
    grad: TensorExpr,
    size: Any,
    before: Any,
    align_corners: bool,
    *scales: float | None,
) -> Lowered:
    return _weighted_backward(ctx, grad, align_corners, scales, linear_taps, (0, 1))


@lowers("upsample_bicubic2d_backward")
def cubic_backward(
    ctx: LoweringContext,
    grad: TensorExpr,
    size: Any,
    before: Any,
    align_corners: bool,
    *scales: float | None,
) -> Lowered:
    return _weighted_backward(ctx, grad, align_corners, scales, cubic_taps, (-1, 2))


def _axes(
    ctx: LoweringContext, grad: TensorExpr, scales: Sequence[float | None]
) -> list[ImageAxis]:
    """The axes of the image whose gradient is asked, of which a result is an element of `grad`."""
    dims, results = result_dims(ctx), dimensions(grad.shape)
    first = len(dims) - len(scales)
    return [
        ImageAxis(result.expr, dim.extent, result.extent, scale)
        for dim, result, scale in zip(dims[first:], results[first:], scales, strict=True)
    ]


def _weighted_backward(
    ctx: LoweringContext,
    grad: TensorExpr,
    align_corners: bool,
    scales: Sequence[float | None],
    taps_of: _TapsOf,
    near: tuple[int, int],
) -> Lowered:
    """Along one axis after another, from the last one on."""
    if not grad.dtype.is_float:
        return None
    if not ctx.result.numel() or not all(extent.as_int() for extent in grad.shape):
        return nothing(ctx)
    dtype = accumulation_dtype(grad.dtype)
    axes = _axes(ctx, grad, scales)
    first = len(grad.dims) - len(axes)
    found = grad
    for number in reversed(range(len(axes))):
        axis = axes[number]
        if axis.before is axis.after:
            continue
        span = _results_at(axis, align_corners, near)
        if span is None:
            return None
        found = _along(ctx, found, first + number, axis, span, taps_of, align_corners, dtype)
    dims = result_dims(ctx)
    return ctx.pointwise(dims, found.at([dim.expr for dim in dims]))


_Reach: TypeAlias = tuple[int, int, int, int]
"""p, q, c and k: of results `i * p // q - c` and the k - 1 behind it is element i a part."""


def _results_at(axis: ImageAxis, align_corners: bool, near: tuple[int, int]) -> _Reach | None:
    """None where there are many."""
    before, after = axis.before.as_int(), axis.after.as_int()
    counted = torch.arange(after, dtype=torch.float64)
    step = axis.step(align_corners)
    real = counted * step if align_corners else (counted + 0.5) * step - 0.5
    first = ((real - _SLACK).floor().long() + near[0]).clamp(0, before - 1)
    last = ((real + _SLACK).floor().long() + near[1]).clamp(0, before - 1)
    results = torch.arange(after)
    c = int((last * after // before - results).max())
    count = int((results - first * after // before).max()) + c + 1
    return (after, before, c, count) if count <= _MOST_RESULTS else None


def _along(
    ctx: LoweringContext,
    grad: TensorExpr,
    at: int,
    axis: ImageAxis,
    reach: _Reach,
    taps_of: _TapsOf,
    align_corners: bool,
    dtype: DType,
) -> TensorExpr:
    """The sum of the results along one axis, each by the weight that an element has in it."""
    p, q, c, count = reach
    element, number = Var("i0", axis.before), Var("r0", count)

    def result(place: IndexExpr) -> Span:
        return Span(axis.after.as_int(), place * p // q - c, count)

    here = ImageAxis(result(element.expr).place(number.expr), axis.before, axis.after, axis.scale)
    total: Value = constant(0, dtype)
    for place, weight in taps_of(here, align_corners, dtype):
        is_here = Op("eq", [as_value(place), IndexValue(element.expr)])
        total = Op("add", [total, Op("where", [is_here, weight, constant(0, dtype)])])
    weights = ctx.intermediate((element, number), total, "weights")
    extents = [*grad.shape[:at], axis.before, *grad.shape[at + 1 :]]
    dims = dimensions(extents)
    span = result(dims[at].expr)
    place = span.place(number.expr)
    weight = weights.at([dims[at].expr, number.expr])
    points = [*(dim.expr for dim in dims[:at]), place, *(dim.expr for dim in dims[at + 1 :])]
    part = Op("mul", [cast(grad.at(points), dtype), weight])
    is_part = Op("ne", [weight, constant(0, dtype)])
    value: Value = Op("where", [is_part, part, constant(0, dtype)])
    exists = existing([span], [place])
    if exists is not None:
        value = Masked(exists, value, constant(0, dtype))
    return ctx.combined(dims, (number,), ReductionKind.SUM, value, "gradient")
