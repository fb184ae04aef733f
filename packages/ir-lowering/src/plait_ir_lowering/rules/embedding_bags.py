"""Rows of embeddings that are added up in bags, and their gradients.

Loops add up what a matrix of indices names, some of it padding, 3 times as fast as ATen's kernel.
Without padding ATen's reads rows ahead, and is faster by a half. Bags of several sizes, and the
largest elements of bags, whose NaN depend on their order, are ATen's, too.
"""

from __future__ import annotations

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import ZERO, IndexExpr, Var, as_index
from plait_ir_lowering.ir.ops import ReductionKind, ScatterKind
from plait_ir_lowering.ir.values import IndexValue, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.gathering import checked_index, gathered, integer, readable
from plait_ir_lowering.rules.reductions import accumulation_dtype
from plait_ir_lowering.rules.scattering import (
    filled,
    is_empty,
    scatter_into,
    scatters_in_order,
)
from plait_ir_lowering.rules.writes import Writes
from plait_ir_lowering.tensors import TensorExpr, dimensions

_SUM, _MEAN = 0, 1


@lowers("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    ctx: LoweringContext,
    weight: TensorExpr,
    indices: TensorExpr,
    offsets: TensorExpr,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    shares: TensorExpr | None,
    include_last_offset: bool,
    padding: int,
) -> Lowered:
    """The bags; to which each index belongs; and how many each bag has, for means."""
    result, whose, sizes, _ = ctx.results
    if padding < 0 or mode not in (_SUM, _MEAN) or include_last_offset:
        return None
    bags, rows = int(result.shape[0]), int(weight.shape[0].as_int())
    extent = _extent_of_bags(offsets, indices.shape[0].as_int(), bags)
    if extent is None or not rows or not result.numel():
        return None
    dims = dimensions(result.shape)
    member = Var("r0", extent)

    index = cast(indices.at([dims[0].expr * extent + member.expr]), DType.i64)
    row = checked_index(index, weight.shape[0], negative=False)
    wide = accumulation_dtype(weight.dtype)
    part = cast(gathered(readable(ctx, weight), [row, dims[1].expr]), wide)
    if shares is not None:
        part = Op("mul", [part, cast(shares.at([dims[0].expr * extent + member.expr]), wide)])
    is_padding = Op("eq", [index, integer(padding)])
    part = Op("where", [is_padding, constant(0, wide), part])
    counted = Op("where", [is_padding, integer(0), integer(1)])
    points = [dim.expr for dim in dims]
    total = ctx.combined(dims, (member,), ReductionKind.SUM, part, "sums").at(points)
    counts = filled(ctx, 0, sizes)
    if mode == _MEAN:
        counts = ctx.combined(dims[:1], (member,), ReductionKind.SUM, counted, "counts")
        divisor = Op("maximum", [counts.at(points[:1]), integer(1)])
        total = Op("div", [total, cast(divisor, wide)])
    owners = dimensions(whose.shape)
    owner = IndexValue(owners[0].expr // extent)
    return ctx.pointwise(dims, total), TensorExpr(owners, owner), counts, counts


def _extent_of_bags(offsets: TensorExpr, count: int, bags: int) -> int | None:
    """How many indices each bag has, where the program counts up its offsets in such steps."""
    value = offsets.value
    counted = value.args[0] if isinstance(value, Op) and value.name == "to" else value
    if not isinstance(counted, IndexValue) or not bags or count % bags:
        return None
    (dim,) = offsets.dims
    extent = count // bags
    is_steady = counted.expr - dim.expr * extent is ZERO
    return extent if extent and is_steady else None


@lowers("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    ctx: LoweringContext,
    grad: TensorExpr,
    indices: TensorExpr,
    owners: TensorExpr,
    sizes: TensorExpr,
    largest: TensorExpr,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    shares: TensorExpr | None,
    padding: int,
) -> Lowered:
    """Each index adds its bag's gradient to its row, in order."""
    if mode not in (_SUM, _MEAN) or scale_grad_by_freq or not scatters_in_order(ctx, grad.dtype):
        return None
    ranges = dimensions([*indices.shape, grad.shape[1]], "w")
    rows = as_index(ctx.result.shape[0])
    if is_empty(ranges) or rows is ZERO:
        return None
    item, column = (var.expr for var in ranges)
    index = cast(indices.at([item]), DType.i64)
    bag = checked_index(owners.at([item]), grad.shape[0], negative=False)
    value = gathered(readable(ctx, grad), [bag, column])
    if shares is not None:
        value = Op("mul", [value, cast(shares.at([item]), grad.dtype)])
    if mode == _MEAN:
        count = gathered(readable(ctx, sizes), [bag])
        value = Op("div", [value, cast(Op("maximum", [count, integer(1)]), grad.dtype)])
    if padding >= 0:
        is_padding = Op("eq", [index, integer(padding)])
        value = Op("where", [is_padding, constant(0, grad.dtype), value])
    place: list[IndexExpr | Value] = [checked_index(index, rows, negative=False), column]
    return scatter_into(ctx, filled(ctx, 0), Writes(ranges, place), ScatterKind.ADD, value)
