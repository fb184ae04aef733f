"""Gathers, joins and padding: loads at computed coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import Atom, IndexExpr, as_index
from plait_ir_lowering.ir.index_queries import atoms, substitute
from plait_ir_lowering.ir.values import CheckedIndex, IndexValue, Load, Masked, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.tensors import TensorExpr, dimensions


def _index(value: Value, size: IndexExpr, *, negative: bool) -> Value:
    """`value` as a checked coordinate; `negative` indices count from the end, or fail."""
    index = cast(value, DType.i64)
    if not negative:
        limit = IndexValue(size)
        below = Op("lt", [index, constant(0, DType.i64)])
        index = Op("where", [below, limit, index])  # out of range, so that the check fails
    return CheckedIndex(index, size)


def _gather(x: TensorExpr, axis: int, places: Sequence[IndexExpr], chosen: Value) -> Value | None:
    """`x` at `places`, but at the value `chosen` along `axis`; None unless x is a plain load."""
    if not isinstance(x.value, Load):
        return None
    marker = x.dims[axis].expr
    moved: list[IndexExpr | Value] = []
    for coordinate in x.value.index:
        if isinstance(coordinate, Value):
            return None
        if coordinate is marker:
            moved.append(chosen)
            continue
        pairs = enumerate(zip(x.dims, places, strict=True))
        others: dict[Atom, IndexExpr] = {d: p for n, (d, p) in pairs if n != axis}
        if x.dims[axis] in atoms(coordinate):
            return None
        moved.append(substitute(coordinate, others))
    return Load(x.value.buffer, moved, x.value.dtype)


@lowers("embedding")
def embedding(
    ctx: LoweringContext,
    weight: TensorExpr,
    indices: TensorExpr,
    padding_idx: int,
    scale_grad_by_freq: bool,
    sparse: bool,
) -> Lowered:
    dims = dimensions([int(size) for size in ctx.result.shape])
    places = [dim.expr for dim in dims]
    chosen = _index(indices.at(places[:-1]), weight.shape[0], negative=False)
    value = _gather(weight, 0, [as_index(0), places[-1]], chosen)
    return None if value is None else ctx.pointwise(dims, value)


@lowers("index_select")
def index_select(ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr) -> Lowered:
    if not x.dims or not indices.dims:
        return None
    dims = dimensions([int(size) for size in ctx.result.shape])
    places = [dim.expr for dim in dims]
    at = axis + len(dims) if axis < 0 else axis
    chosen = _index(indices.at([places[at]]), x.shape[at], negative=False)
    value = _gather(x, at, places, chosen)
    return None if value is None else ctx.pointwise(dims, value)


@lowers("gather")
def gather(
    ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr, sparse_grad: bool
) -> Lowered:
    if not x.dims or len(indices.dims) != len(x.dims):
        return None
    if ctx.result.dim() != len(x.dims):  # torch's meta kernel, for a tensor of one element
        raise ctx.error("its fake value has another rank than its result")
    dims = dimensions([int(size) for size in ctx.result.shape])
    places = [dim.expr for dim in dims]
    at = axis + len(dims) if axis < 0 else axis
    chosen = _index(indices.at(places), x.shape[at], negative=False)
    value = _gather(x, at, places, chosen)
    return None if value is None else ctx.pointwise(dims, value)


@lowers("index.Tensor")
def index(ctx: LoweringContext, x: TensorExpr, indices: Sequence[TensorExpr | None]) -> Lowered:
    used = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if len(used) != 1 or used[0][1].dtype is DType.bool_ or used[0][1].dtype is DType.u8:
        return None
    axis, chosen_by = used[0]
    dims = dimensions([int(size) for size in ctx.result.shape])
    places = [dim.expr for dim in dims]
    width = len(chosen_by.dims)
    chosen = _index(chosen_by.at(places[axis : axis + width]), x.shape[axis], negative=True)
    around = [*places[:axis], as_index(0), *places[axis + width :]]
    value = _gather(x, axis, around, chosen)
    return None if value is None else ctx.pointwise(dims, value)


@lowers("cat")
def cat(ctx: LoweringContext, tensors: Sequence[TensorExpr], axis: int) -> Lowered:
    rank = ctx.result.dim()
    at = axis + rank if axis < 0 else axis
    dtype = ctx.dtype_of(ctx.result)
    parts = [t for t in tensors if len(t.dims) == rank]
    if len(parts) != len(tensors) or dtype.kind == "complex":
        return None
    dims = dimensions([int(size) for size in ctx.result.shape])
    places = [dim.expr for dim in dims]
    value: Value = constant(0, dtype)
    start = 0
    for part in parts:
        stop = start + part.shape[at].as_int()
        if stop > start:
            inside = list(places)
            inside[at] = inside[at] - start
            within = _between(places[at], start, stop)
            value = Masked(within, cast(part.at(inside), dtype), value)
        start = stop
    return ctx.pointwise(dims, value)


def _between(position: IndexExpr, start: int, stop: int) -> Value:
    at = IndexValue(position)
    above = Op("ge", [at, constant(start, DType.i64)])
    return Op("logical_and", [above, Op("lt", [at, constant(stop, DType.i64)])])


@lowers("constant_pad_nd")
def constant_pad(ctx: LoweringContext, x: TensorExpr, pad: Sequence[int], fill: Any) -> Lowered:
    if x.dtype.kind == "complex":
        return None
    dims = dimensions([int(size) for size in ctx.result.shape])
    if any(extent.is_constant and extent.as_int() == 0 for extent in x.shape):
        return ctx.pointwise(dims, constant(fill, x.dtype))
    places: list[IndexExpr] = [dim.expr for dim in dims]
    checks: list[Value] = []
    for number in range(len(pad) // 2):
        axis = len(dims) - 1 - number
        before, after = pad[2 * number], pad[2 * number + 1]
        position = places[axis] - before
        places[axis] = position
        if before > 0:
            checks.append(Op("ge", [IndexValue(position), constant(0, DType.i64)]))
        if after > 0:
            size = x.shape[axis].as_int()
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
    lower = str(ctx.current.target).startswith("aten.tril")
    keep = Op("le" if lower else "ge", [column, row])
    zero = constant(0, x.dtype)
    return ctx.pointwise(dims, Op("where", [keep, x.at([d.expr for d in dims]), zero]))
