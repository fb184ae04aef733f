"""The gradient of an embedding's weight: rows added to zeros."""

from __future__ import annotations

import torch

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import ZERO, IndexExpr, Var, as_index
from plait_ir_lowering.ir.ops import ScatterKind
from plait_ir_lowering.ir.values import Const, IndexValue, Load, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.gathering import checked_index
from plait_ir_lowering.rules.scattering import (
    can_scatter,
    filled,
    is_empty,
    scatter_constant,
    scatter_into,
)
from plait_ir_lowering.rules.writes import Writes
from plait_ir_lowering.tensors import TensorExpr, dimensions


@lowers("embedding_dense_backward")
def embedding_dense_backward(
    ctx: LoweringContext,
    grad: TensorExpr,
    indices: TensorExpr,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Lowered:
    """The additions of ATen's kernel, on a CPU in their order, but for indices out of bounds, which
    it takes for addresses. On a GPU these add nothing: their forward has told of them, and to wait
    for a report would take longer than the additions."""
    if not can_scatter(ctx, grad.dtype, ScatterKind.ADD) or len(grad.dims) != len(indices.dims) + 1:
        return None
    ranges = dimensions(grad.shape, "w")
    points = [var.expr for var in ranges]
    rows = as_index(ctx.result.shape[0])
    if rows is ZERO and not is_empty(ranges):
        return None
    index = cast(indices.at(points[:-1]), DType.i64)
    value, counted = grad.at(points), None
    if ctx.result.device.type == "cpu":
        row = checked_index(index, rows, negative=False)
    else:
        counted = _is_inside(index, rows)
        row = Op("where", [counted, index, constant(0, DType.i64)])
    if scale_grad_by_freq:
        value = Op("mul", [value, _share(ctx, row, ranges[:-1], grad.dtype)])
    if padding_idx >= 0:
        is_other = Op("ne", [index, constant(padding_idx, DType.i64)])
        counted = is_other if counted is None else Op("logical_and", [counted, is_other])
    writes = Writes(ranges, [row, points[-1]], counted)
    return scatter_into(ctx, filled(ctx, 0), writes, ScatterKind.ADD, value)


def _is_inside(index: Value, size: IndexExpr) -> Value:
    low, high = Op("ge", [index, constant(0, DType.i64)]), Op("lt", [index, IndexValue(size)])
    return Op("logical_and", [low, high])


def _share(ctx: LoweringContext, row: Value, ranges: tuple[Var, ...], dtype: DType) -> Value:
    """One over how many of `ranges` go to a row."""
    like = ctx.result.new_empty((ctx.result.shape[0],), dtype=torch.int64)
    one, start = Const(1, DType.i64), filled(ctx, 0, like)
    counts = scatter_constant(ctx, start, Writes(ranges, [row]), ScatterKind.ADD, one, like)
    assert counts.ref is not None
    found = cast(Load(counts.ref.buffer, [row], DType.i64), DType.f64)
    return cast(Op("div", [constant(1, DType.f64), found]), dtype)
