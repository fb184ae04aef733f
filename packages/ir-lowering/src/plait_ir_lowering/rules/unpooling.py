"""Windows put back together: the backwards of pooling and unfolding, and `fold`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from plait_ir_lowering.context import LoweringContext
from plait_ir_lowering.ir.graph import Layout, TensorRef
from plait_ir_lowering.ir.index import ZERO, IndexExpr
from plait_ir_lowering.ir.ops import ScatterKind
from plait_ir_lowering.ir.values import Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.gathering import checked_index, unflattened
from plait_ir_lowering.rules.scattering import (
    filled,
    is_empty,
    scatter_into,
    scatters_in_order,
)
from plait_ir_lowering.rules.writes import Writes
from plait_ir_lowering.tensors import TensorExpr, dimensions


def _to_places(
    ctx: LoweringContext, values: TensorExpr, indices: TensorExpr, rank: int, kind: ScatterKind
) -> TensorExpr | None:
    """Values at the places that indices count row-major in the last `rank` dimensions; else 0."""
    start = filled(ctx, 0)
    if not scatters_in_order(ctx, values.dtype) or len(values.dims) != len(start.dims):
        return None
    if values.shape != indices.shape:
        return None
    ranges = dimensions(values.shape, "w")
    points: list[IndexExpr | Value] = [var.expr for var in ranges]
    sizes = start.shape[-rank:]
    if any(size is ZERO for size in start.shape):
        return ctx.pointwise(start.dims, start.value) if is_empty(ranges) else None
    count = sizes[0]
    for size in sizes[1:]:
        count = count * size
    chosen = indices.at([var.expr for var in ranges])
    place = checked_index(chosen, count, negative=False)
    value = values.at([var.expr for var in ranges])
    if ctx.result.is_contiguous():
        return _as_images(ctx, Writes(ranges, [*points[:-rank], place]), kind, value, rank)
    points[-rank:] = unflattened(place, sizes)
    return scatter_into(ctx, start, Writes(ranges, points), kind, value)


def _as_images(
    ctx: LoweringContext, writes: Writes, kind: ScatterKind, value: Value, rank: int
) -> TensorExpr:
    """The node's result by way of one with images in one dimension, which needs no division."""
    sizes = list(ctx.result.shape)
    flat = ctx.result.new_empty((*sizes[:-rank], math.prod(sizes[-rank:])))
    made = scatter_into(ctx, filled(ctx, 0, flat), writes, kind, value, flat)
    assert made is not None
    assert made.ref is not None
    dims = dimensions(sizes)
    position: IndexExpr = ZERO
    for dim in dims[-rank:]:
        position = position * dim.extent + dim.expr
    element = made.at([*(dim.expr for dim in dims[:-rank]), position])
    return TensorExpr(dims, element, TensorRef(made.ref.buffer, Layout.of(sizes)))


@lowers("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def max_pool_backward(
    ctx: LoweringContext,
    grad: TensorExpr,
    x: TensorExpr,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: TensorExpr,
) -> Lowered:
    return _to_places(ctx, grad, indices, _rank_of(ctx), ScatterKind.ADD)


@lowers("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def adaptive_max_pool_backward(
    ctx: LoweringContext, grad: TensorExpr, x: TensorExpr, indices: TensorExpr
) -> Lowered:
    return _to_places(ctx, grad, indices, _rank_of(ctx), ScatterKind.ADD)


def _rank_of(ctx: LoweringContext) -> int:
    return 3 if "3d" in str(ctx.target) else 2


@lowers("max_unpool2d")
def max_unpool2d(
    ctx: LoweringContext, x: TensorExpr, indices: TensorExpr, output_size: Any
) -> Lowered:
    return _to_places(ctx, x, indices, 2, ScatterKind.ASSIGN)


@lowers("max_unpool3d")
def max_unpool3d(
    ctx: LoweringContext,
    x: TensorExpr,
    indices: TensorExpr,
    output_size: Any,
    stride: Any,
    padding: Any,
) -> Lowered:
    return _to_places(ctx, x, indices, 3, ScatterKind.ASSIGN)


@lowers("unfold_backward")
def unfold_backward(
    ctx: LoweringContext,
    grad: TensorExpr,
    input_sizes: Sequence[int],
    axis: int,
    size: int,
    step: int,
) -> Lowered:
    if not scatters_in_order(ctx, grad.dtype) or not input_sizes:
        return None
    at = axis % len(input_sizes)
    ranges = dimensions(grad.shape, "w")
    points = [var.expr for var in ranges]
    place: list[IndexExpr | Value] = [*points[:-1]]
    place[at] = points[at] * step + points[-1]
    value = grad.at(points)
    return scatter_into(ctx, filled(ctx, 0), Writes(ranges, place), ScatterKind.ADD, value)
