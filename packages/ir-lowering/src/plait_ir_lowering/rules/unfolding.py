"""Windows laid out as elements of their own, and images that are sums of such windows."""

from __future__ import annotations

from collections.abc import Sequence

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.graph import Reduction
from plait_ir_lowering.ir.index import Var
from plait_ir_lowering.ir.ops import ReductionKind
from plait_ir_lowering.ir.values import Masked
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.gathering import nothing
from plait_ir_lowering.rules.reductions import accumulation_dtype
from plait_ir_lowering.rules.views import view_at
from plait_ir_lowering.rules.windows import (
    Span,
    existing,
    numbers_of,
    result_dims,
    window_element,
    windows_at,
)
from plait_ir_lowering.tensors import TensorExpr


@lowers("unfold", kind="view")
def unfold(ctx: LoweringContext, x: TensorExpr, axis: int, size: int, step: int) -> Lowered:
    dims = result_dims(ctx)
    if not x.dims:
        return view_at(ctx, x, [], dims)
    places = [dim.expr for dim in dims[:-1]]
    places[axis] = places[axis] * step + dims[-1].expr
    return view_at(ctx, x, places, dims)


@lowers("im2col")
def im2col(
    ctx: LoweringContext,
    x: TensorExpr,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Lowered:
    """Windows as columns: an axis of their elements for each channel, and one of the windows."""
    if not ctx.result.numel():
        return nothing(ctx)
    (high, wide), spreads = numbers_of(kernel, 2), numbers_of(dilation, 2)
    pads, steps = numbers_of(padding, 2), numbers_of(stride, 2)
    dims = result_dims(ctx)
    extents = [extent.as_int() for extent in x.shape[-2:]]
    columns = (extents[1] + 2 * pads[1] - spreads[1] * (wide - 1) - 1) // steps[1] + 1
    element, place = dims[-2].expr, dims[-1].expr
    starts = [place // columns * steps[0] - pads[0], place % columns * steps[1] - pads[1]]
    spans = [
        Span(extent, start, size, spread)
        for extent, start, size, spread in zip(extents, starts, (high, wide), spreads, strict=True)
    ]
    around = [*(dim.expr for dim in dims[:-2]), element // (high * wide)]
    numbers = [element // wide % high, element % wide]
    outside = constant(0, x.dtype)
    return ctx.pointwise(dims, window_element(x, around, spans, numbers, outside))


@lowers("col2im")
def col2im(
    ctx: LoweringContext,
    x: TensorExpr,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Lowered:
    """Each element gathers from the windows that it is in, where these are at all places along an
    axis, or side by side.

    Others are ATen's, which adds each window to all: twice as fast where an element has to find its
    windows among those that are some steps apart.
    """
    sizes, pads = numbers_of(kernel, 2), numbers_of(padding, 2)
    steps = numbers_of(stride, 2)
    if any(step not in (1, each) for step, each in zip(steps, sizes, strict=True)):
        return None
    if any(each > 1 for each in numbers_of(dilation, 2)) or x.dtype.kind == "complex":
        return None
    if not ctx.result.numel():
        return nothing(ctx)
    dims = result_dims(ctx)
    counts = [
        (int(extent) + 2 * pad - each) // step + 1
        for extent, pad, each, step in zip(size, pads, sizes, steps, strict=True)
    ]
    spans = [
        windows_at(dim.expr, count, step, pad, each)
        for dim, count, step, pad, each in zip(dims[-2:], counts, steps, pads, sizes, strict=True)
    ]
    over = tuple(Var(f"r{axis}", span.size) for axis, span in enumerate(spans))
    windows = [span.place(var.expr) for span, var in zip(spans, over, strict=True)]
    inside = [
        dim.expr + pad - window if step == 1 else (dim.expr + pad) % step
        for dim, pad, window, step in zip(dims[-2:], pads, windows, steps, strict=True)
    ]
    channel = dims[-3].expr * (sizes[0] * sizes[1]) + inside[0] * sizes[1] + inside[1]
    column = windows[0] * counts[1] + windows[1]
    around = [dim.expr for dim in dims[:-3]]
    wide = accumulation_dtype(x.dtype)
    part = cast(x.at([*around, channel, column]), wide)
    mask = existing(spans, windows)
    if mask is not None:
        part = Masked(mask, part, constant(0, wide))
    if wide is x.dtype:
        return ctx.define(Reduction(dims, over, ReductionKind.SUM, part), ctx.result)
    total = ctx.combined(dims, over, ReductionKind.SUM, part, "sums")
    return ctx.pointwise(dims, total.at([dim.expr for dim in dims]))
