"""Windows laid out as elements of their own."""

from __future__ import annotations

from collections.abc import Sequence

from plait_ir_lowering.context import LoweringContext, constant
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.gathering import nothing
from plait_ir_lowering.rules.views import view_at
from plait_ir_lowering.rules.windows import Span, numbers_of, result_dims, window_element
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
