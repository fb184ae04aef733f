"""Gathers, joins and padding: loads at computed coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import row_major
from plait_ir_lowering.ir.index import ONE, ZERO, IndexExpr, Var
from plait_ir_lowering.ir.index_queries import product
from plait_ir_lowering.ir.values import Const, IndexValue, Masked, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.gathering import (
    Place,
    as_value,
    checked_index,
    chooses_of_nothing,
    gathered,
    nothing,
    readable,
)
from plait_ir_lowering.tensors import TensorExpr, dimensions


@lowers("embedding")
def embedding(
    ctx: LoweringContext,
    weight: TensorExpr,
    indices: TensorExpr,
    padding_idx: int,
    scale_grad_by_freq: bool,
    sparse: bool,
) -> Lowered:
    if weight.shape[1] is ZERO:  # no element is read that its index is checked for, as ATen does
        return None
    dims = dimensions(ctx.result.shape)
    places = [dim.expr for dim in dims]
    chosen = checked_index(indices.at(places[:-1]), weight.shape[0], negative=False)
    return ctx.pointwise(dims, gathered(readable(ctx, weight), [chosen, places[-1]]))


@lowers("index_select")
def index_select(ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr) -> Lowered:
    if not x.dims or not indices.dims:  # one index stands for a list of it
        return _one_selected(ctx, x, axis, indices)
    dims = dimensions(ctx.result.shape)
    places: list[Place] = [dim.expr for dim in dims]
    at = axis + len(dims) if axis < 0 else axis
    if ZERO in (*x.shape[:at], *x.shape[at + 1 :]):  # as in an embedding
        return None
    places[at] = checked_index(indices.at([dims[at].expr]), x.shape[at], negative=False)
    return ctx.pointwise(dims, gathered(readable(ctx, x), places))


def _one_selected(ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr) -> Lowered:
    if any(extent.as_int() != 1 for extent in indices.shape):
        return None
    index = indices.at([ZERO] * len(indices.dims))
    dims = dimensions(ctx.result.shape)
    if not x.dims:  # 0 is the only place
        element = ctx.intermediate((Var("i0", 1),), x.value, "element")
        checked = checked_index(index, ONE, negative=False)
        return ctx.pointwise(dims, gathered(element, [checked]))
    places: list[Place] = [dim.expr for dim in dims]
    at = axis + len(dims) if axis < 0 else axis
    places[at] = checked_index(index, x.shape[at], negative=False)
    return ctx.pointwise(dims, gathered(readable(ctx, x), places))


@lowers("gather")
def gather(
    ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr, sparse_grad: bool
) -> Lowered:
    if not ctx.result.numel():
        return nothing(ctx)
    if not x.dims or len(indices.dims) != len(x.dims):
        return None
    if ctx.result.dim() != len(x.dims):  # torch's meta kernel, for a tensor of one element
        raise ctx.error("its fake value has another rank than its result")
    dims = dimensions(ctx.result.shape)
    places: list[Place] = [dim.expr for dim in dims]
    at = axis + len(dims) if axis < 0 else axis
    chosen = indices.at([dim.expr for dim in dims])
    places[at] = checked_index(chosen, x.shape[at], negative=False)
    return ctx.pointwise(dims, gathered(readable(ctx, x), places))


@lowers("take")
def take(ctx: LoweringContext, x: TensorExpr, indices: TensorExpr) -> Lowered:
    """Elements counted in row-major order."""
    if not x.dims:  # a row of one
        x = ctx.intermediate((Var("i0", 1),), x.value, "element")
    dims = dimensions(ctx.result.shape)
    total = product(x.shape)
    chosen = checked_index(indices.at([dim.expr for dim in dims]), total, negative=True)
    if total.is_constant and total.as_int() == 0:
        return None if ctx.result.numel() else ctx.pointwise(dims, constant(0, x.dtype))
    places: list[Place] = []
    for axis, (extent, step) in enumerate(zip(x.shape, row_major(x.shape), strict=True)):
        counted = chosen if step is ONE else Op("floordiv", [chosen, as_value(step)])
        places.append(Op("rem", [counted, as_value(extent)]) if axis else counted)
    return ctx.pointwise(dims, gathered(readable(ctx, x), places))


@lowers("index.Tensor", "_unsafe_index.Tensor")
def index(ctx: LoweringContext, x: TensorExpr, indices: Sequence[TensorExpr | None]) -> Lowered:
    """Index tensors broadcast against each other; what they choose stands where they stand, or
    in front where there are others between them."""
    used = {axis: each for axis, each in enumerate(indices) if each is not None}
    masks = any(each.dtype in (DType.bool_, DType.u8) for each in used.values())
    if not used or masks:
        return None
    if chooses_of_nothing(x.shape, used):
        return None
    dims = dimensions(ctx.result.shape)
    places = [dim.expr for dim in dims]
    width = max(len(each.dims) for each in used.values())
    first, last = min(used), max(used)
    start = first if last - first + 1 == len(used) else 0
    around = iter([*places[:start], *places[start + width :]])
    chosen: list[Place] = []
    for axis, extent in enumerate(x.shape):
        if axis in used:
            value = used[axis].broadcast_at(places[start : start + width])
            chosen.append(checked_index(value, extent, negative=True))
        else:
            chosen.append(next(around))
    return ctx.pointwise(dims, gathered(readable(ctx, x), chosen))


_MOST_PARTS = 256
"""Of a concatenation that loops choose from: each element asks which part it is of."""


@lowers("cat")
def cat(ctx: LoweringContext, tensors: Sequence[TensorExpr], axis: int) -> Lowered:
    rank = ctx.result.dim()
    at = axis + rank if axis < 0 else axis
    dtype = ctx.dtype_of(ctx.result)
    parts = [t for t in tensors if len(t.dims) == rank]
    if len(parts) != len(tensors):
        return None
    dims = dimensions(ctx.result.shape)
    places = [dim.expr for dim in dims]
    ranges: list[tuple[IndexExpr, IndexExpr, Value]] = []
    start = ZERO
    for part in parts:
        stop = start + part.shape[at]
        if stop is not start:
            inside = list(places)
            inside[at] = inside[at] - start
            element = cast(part.at(inside), dtype)
            if ranges and element is ranges[-1][2] and isinstance(element, Const):
                ranges[-1] = (ranges[-1][0], stop, element)
            else:
                ranges.append((start, stop, element))
        start = stop
    if len(ranges) > _MOST_PARTS:
        return None
    value: Value = constant(0, dtype)
    for start, stop, element in ranges:
        value = Masked(_between(places[at], start, stop), element, value)
    return ctx.pointwise(dims, value)


def _between(position: IndexExpr, start: IndexExpr, stop: IndexExpr) -> Value:
    at = IndexValue(position)
    above = Op("ge", [at, constant(start, DType.i64)])
    return Op("logical_and", [above, Op("lt", [at, constant(stop, DType.i64)])])


@lowers("constant_pad_nd")
def constant_pad(ctx: LoweringContext, x: TensorExpr, pad: Sequence[int], fill: Any) -> Lowered:
    dims = dimensions(ctx.result.shape)
    if any(extent.is_constant and extent.as_int() == 0 for extent in x.shape):
        return ctx.pointwise(dims, constant(fill, x.dtype))
    places: list[IndexExpr] = [dim.expr for dim in dims]
    checks: list[Value] = []
    for number in range(len(pad) // 2):
        axis = len(dims) - 1 - number
        before, after = pad[2 * number], pad[2 * number + 1]
        position = places[axis] - before
        places[axis] = position
        if not isinstance(before, int) or before > 0:  # what is cut off passes the check
            checks.append(Op("ge", [IndexValue(position), constant(0, DType.i64)]))
        if not isinstance(after, int) or after > 0:
            size = x.shape[axis]
            checks.append(Op("lt", [IndexValue(position), constant(size, DType.i64)]))
    inside = x.at(places)
    if not checks:
        return ctx.pointwise(dims, inside)
    mask = checks[0]
    for check in checks[1:]:
        mask = Op("logical_and", [mask, check])
    return ctx.pointwise(dims, Masked(mask, inside, constant(fill, x.dtype)))


@lowers("flip")
def flip(ctx: LoweringContext, x: TensorExpr, axes: Sequence[int]) -> Lowered:
    dims = dimensions(x.shape)
    places = [dim.expr for dim in dims]
    for axis in axes if places else ():
        places[axis] = x.shape[axis] - 1 - places[axis]
    return ctx.pointwise(dims, x.at(places))


@lowers("tril", "triu")
def triangle(ctx: LoweringContext, x: TensorExpr, diagonal: int) -> Lowered:
    dims = dimensions(x.shape)
    row, column = IndexValue(dims[-2].expr + diagonal), IndexValue(dims[-1].expr)
    lower = str(ctx.target).startswith("aten.tril")
    keep = Op("le" if lower else "ge", [column, row])
    zero = constant(0, x.dtype)
    return ctx.pointwise(dims, Op("where", [keep, x.at([d.expr for d in dims]), zero]))
