"""Assignments through indices: to rows, to elements named by several indices, to flat places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Scan, row_major
from plait_ir_lowering.ir.index import ONE, ZERO, IndexExpr, Var, as_index
from plait_ir_lowering.ir.ops import ScatterKind
from plait_ir_lowering.ir.values import Masked, Op, Value, carried
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.complex_formulas import op
from plait_ir_lowering.rules.gathering import (
    checked_index,
    chooses_of_nothing,
    gathered,
    readable,
    unflattened,
)
from plait_ir_lowering.rules.scattering import (
    can_scatter,
    combine,
    eager_refuses,
    in_rows,
    is_empty,
    row_of,
    scatter_into,
    sizes_of,
)
from plait_ir_lowering.rules.writes import Writes
from plait_ir_lowering.tensors import NumberExpr, TensorExpr, dimensions


@lowers("index_put", "_unsafe_index_put")
def index_put(
    ctx: LoweringContext,
    x: TensorExpr,
    indices: Sequence[TensorExpr | None],
    values: TensorExpr,
    accumulate: bool,
) -> Lowered:
    used = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    kind = ScatterKind.ADD if accumulate else ScatterKind.ASSIGN
    if not can_scatter(ctx, x.dtype, kind) or not used:
        return None
    if any(i.dtype in (DType.bool_, DType.u8) for _, i in used):
        return _put_where(ctx, x, used, values, accumulate)
    writes = _indexed(x, used)
    if writes is None or len(values.dims) > len(writes.ranges):
        return None
    return scatter_into(ctx, x, writes, kind, values.broadcast_at(writes.points))


def _indexed(x: TensorExpr, used: Sequence[tuple[int, TensorExpr]]) -> Writes | None:
    """Loops over what indices choose of `x`, in the order of its dimensions."""
    shape = _broadcast([i.shape for _, i in used])
    if shape is None:
        return None
    axes = [axis for axis, _ in used]
    adjacent = axes == list(range(axes[0], axes[-1] + 1))
    first = axes[0] if adjacent else 0
    kept = [size for axis, size in enumerate(x.shape) if axis not in axes]
    ranges = dimensions([*kept[:first], *shape, *kept[first:]], "w")
    if chooses_of_nothing(x.shape, dict(used)):
        return None  # each index is wrong, and there is no element that one could go to
    points = [var.expr for var in ranges]
    chosen = points[first : first + len(shape)]
    others = iter(points[:first] + points[first + len(shape) :])
    by_axis = dict(used)
    place: list[IndexExpr | Value] = [
        checked_index(by_axis[axis].broadcast_at(chosen), size, negative=True)
        if axis in by_axis
        else next(others)
        for axis, size in enumerate(x.shape)
    ]
    return Writes(ranges, place)


def _broadcast(shapes: Sequence[Sequence[IndexExpr]]) -> list[IndexExpr] | None:
    """The shape that indices broadcast to; None where they do not certainly."""
    rank = max(len(shape) for shape in shapes)
    found = [as_index(1)] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if found[axis] is as_index(1):
                found[axis] = size
            elif size is not as_index(1) and size is not found[axis]:
                return None
    return found


def _put_where(
    ctx: LoweringContext,
    x: TensorExpr,
    used: Sequence[tuple[int, TensorExpr]],
    values: TensorExpr,
    accumulate: bool,
) -> Lowered:
    """The same values put wherever a mask holds; how many places there are is not known before."""
    (axis, mask), *others = used
    if others or mask.dtype is not DType.bool_:
        return None
    behind = axis + len(mask.dims)
    if mask.shape != x.shape[axis:behind]:
        return None
    dims = dimensions(x.shape)
    points = [dim.expr for dim in dims]
    chosen = [*points[:axis], ZERO, *points[behind:]]
    place = len(values.dims) - 1 - (len(dims) - behind)  # the values' dimension over the places
    if len(values.dims) > len(chosen) or (place >= 0 and values.shape[place] is not as_index(1)):
        return None
    old, new = x.at(points), cast(values.broadcast_at(chosen), x.dtype)
    new = op("add", [old, new]) if accumulate else new
    return ctx.pointwise(dims, Op("where", [mask.at(points[axis:behind]), new, old]))


def _rows(
    ctx: LoweringContext,
    x: TensorExpr,
    axis: int,
    indices: TensorExpr,
    source: TensorExpr,
    kind: ScatterKind = ScatterKind.ASSIGN,
) -> tuple[Writes, Value] | None:
    """Where the rows of `source` go along `axis`, and their elements."""
    given, where = row_of(source), row_of(indices)
    if not can_scatter(ctx, x.dtype, kind) or source.dtype is not x.dtype:
        return None
    if len(given.dims) != len(sizes_of(x)) or len(where.dims) > 1:
        return None
    at, ranges = axis % len(given.dims), dimensions(given.shape, "w")
    if where.shape[0] is not given.shape[at]:
        return None
    writes = in_rows(x, at, ranges, where.at([ranges[at].expr]), negative=False)
    return None if writes is None else (writes, given.at(writes.points))


@lowers("index_add")
def index_add(
    ctx: LoweringContext,
    x: TensorExpr,
    axis: int,
    indices: TensorExpr,
    source: TensorExpr,
    alpha: Any,
) -> Lowered:
    found = _rows(ctx, x, axis, indices, source, ScatterKind.ADD)
    if found is None:
        return None
    writes, value = found
    if isinstance(alpha, NumberExpr) or alpha != 1:
        value = op("mul", [value, constant(alpha, x.dtype)])
    return scatter_into(ctx, x, writes, ScatterKind.ADD, value)


@lowers("index_copy")
def index_copy(
    ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr, source: TensorExpr
) -> Lowered:
    found = _rows(ctx, x, axis, indices, source)
    return None if found is None else scatter_into(ctx, x, found[0], ScatterKind.ASSIGN, found[1])


@lowers("index_reduce")
def index_reduce(
    ctx: LoweringContext,
    x: TensorExpr,
    axis: int,
    indices: TensorExpr,
    source: TensorExpr,
    reduce: str,
    include_self: bool,
) -> Lowered:
    found = None if eager_refuses(ctx) else _rows(ctx, x, axis, indices, source)
    return None if found is None else combine(ctx, x, *found, reduce, include_self=include_self)


@lowers("index_fill.int_Scalar")
def index_fill(
    ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr, number: Any
) -> Lowered:
    if not can_scatter(ctx, x.dtype):
        return None
    return _filled(ctx, x, axis, indices, constant(number, x.dtype))


@lowers("index_fill.int_Tensor")
def index_fill_tensor(
    ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr, number: TensorExpr
) -> Lowered:
    if number.dims or not can_scatter(ctx, x.dtype):
        return None
    return _filled(ctx, x, axis, indices, number.value)


def _filled(
    ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr, value: Value
) -> Lowered:
    where, sizes = row_of(indices), sizes_of(x)
    if len(where.dims) > 1:
        return None
    at = axis % len(sizes)
    ranges = dimensions([where.shape[0] if n == at else size for n, size in enumerate(sizes)], "w")
    writes = in_rows(x, at, ranges, where.at([ranges[at].expr]), negative=True)
    return None if writes is None else scatter_into(ctx, x, writes, ScatterKind.ASSIGN, value)


def _flat(ctx: LoweringContext, x: TensorExpr, indices: TensorExpr) -> Writes | None:
    """Loops over indices that count the elements of `x` row-major."""
    count = as_index(1)
    for size in x.shape:
        count = count * size
    ranges = dimensions(indices.shape, "w")
    if count is ZERO and not is_empty(ranges):
        return None
    chosen = indices.at([var.expr for var in ranges])
    position = checked_index(chosen, count, negative=True)
    place = unflattened(position, x.shape) if count is not ZERO else [ZERO for _ in x.shape]
    return Writes(ranges, place if x.dims else [position])


@lowers("put")
def put(
    ctx: LoweringContext, x: TensorExpr, indices: TensorExpr, source: TensorExpr, accumulate: bool
) -> Lowered:
    kind = ScatterKind.ADD if accumulate else ScatterKind.ASSIGN
    if not can_scatter(ctx, x.dtype, kind) or source.dtype is not x.dtype:
        return None
    if source.shape != indices.shape or eager_refuses(ctx):
        return None
    writes = _flat(ctx, x, indices)
    if writes is None:
        return None
    return scatter_into(ctx, x, writes, kind, source.at(writes.points))


@lowers("masked_scatter")
def masked_scatter(
    ctx: LoweringContext, x: TensorExpr, mask: TensorExpr, source: TensorExpr
) -> Lowered:
    """Where a mask holds, the elements of `source` in order: a running count says which one."""
    result = ctx.result
    shape = [as_index(size) for size in result.shape]
    if not x.dims or source.dtype is not x.dtype or any(size is ZERO for size in shape):
        return None
    if result.device.type != "cpu" or any(size is ZERO for size in source.shape):
        return None
    count = ONE
    for size in shape:
        count = count * size
    along = Var("i0", count)
    places = [
        along.expr // step % size if size is not ONE else ZERO
        for step, size in zip(row_major(shape), shape, strict=True)
    ]
    (a,), (b,) = carried("a", [DType.i64]), carried("b", [DType.i64])
    chosen = cast(mask.broadcast_at(places), DType.i64)
    counts = ctx.define(
        Scan((along,), along, chosen, Op("add", [a, b]), a),
        result.new_empty((result.numel(),), dtype=torch.int64),
    )
    dims = dimensions(shape)
    points = [dim.expr for dim in dims]
    here = as_index(0)
    for point, step in zip(points, row_major(shape), strict=True):
        here = here + point * step
    number = Op("sub", [counts.at([here]), constant(1, DType.i64)])
    total = ONE
    for size in source.shape:
        total = total * size
    element = row_of(source)
    taken = checked_index(number, total, negative=False)
    value = gathered(readable(ctx, element), unflattened(taken, element.shape))
    return ctx.pointwise(dims, Masked(mask.broadcast_at(points), value, x.broadcast_at(points)))
