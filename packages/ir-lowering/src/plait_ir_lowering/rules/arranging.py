"""Elements at other places: rolled, written into a part of a tensor, laid on a diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import row_major
from plait_ir_lowering.ir.index import ZERO, IndexExpr, as_index
from plait_ir_lowering.ir.values import IndexValue, Masked, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.tensors import TensorExpr, dimensions


def _compare(name: str, position: IndexExpr, limit: IndexExpr | int | torch.SymInt) -> Value:
    other = as_index(limit)
    is_known = other.is_constant
    last = constant(other.as_int(), DType.i64) if is_known else IndexValue(other)
    return Op(name, [IndexValue(position), last])


def _all(checks: Sequence[Value]) -> Value:
    found = constant(True, DType.bool_)
    for number, check in enumerate(checks):
        found = check if number == 0 else Op("logical_and", [found, check])
    return found


def _axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


@lowers("roll")
def roll(
    ctx: LoweringContext, x: TensorExpr, shifts: Sequence[int], axes: Sequence[int]
) -> Lowered:
    dims = dimensions(x.shape)
    places = [dim.expr for dim in dims]
    if not axes and ctx.result.numel():  # as if the tensor had one dimension
        places = _rolled_flat(x.shape, places, shifts[0])
    for shift, axis in zip(shifts, axes, strict=False):
        at = _axis(axis, len(dims))
        places[at] = _rolled(places[at], x.shape[at], shift)
    return ctx.pointwise(dims, x.at(places))


def _rolled(place: IndexExpr, extent: IndexExpr, shift: int) -> IndexExpr:
    """Where the element comes from; of 0 or 1 there is no other."""
    if extent.is_constant and extent.as_int() < 2:
        return place
    return (place + as_index(-shift) % extent) % extent


def _rolled_flat(
    shape: Sequence[IndexExpr], places: Sequence[IndexExpr], shift: int
) -> list[IndexExpr]:
    position, count = ZERO, as_index(1)
    for place, step, size in zip(places, row_major(shape), shape, strict=True):
        position, count = position + place * step, count * size
    position = _rolled(position, count, shift)
    return [position // step % size for step, size in zip(row_major(shape), shape, strict=True)]


@lowers("slice_scatter")
def slice_scatter(
    ctx: LoweringContext,
    x: TensorExpr,
    source: TensorExpr,
    axis: int,
    start: Any,
    end: Any,
    step: int,
) -> Lowered:
    """`x` with a slice of it replaced."""
    dims = dimensions(x.shape)
    places = [dim.expr for dim in dims]
    at = _axis(axis, len(dims))
    size = ctx.traced_size(0, at)
    first = 0 if start is None else min(max(start + size if start < 0 else start, 0), size)
    begin, count = as_index(first), source.shape[at]
    kept = x.at(places)
    if count.is_constant and not count.as_int():
        return ctx.pointwise(dims, kept)
    distance, reach = places[at] - begin, (count - 1) * step
    rest = x.shape[at] - (begin + reach + 1)
    checks = [] if begin is ZERO else [_compare("ge", distance, 0)]
    if not rest.is_constant or rest.as_int() > 0:
        checks.append(_compare("le", distance, reach))
    if step > 1:
        checks.append(_compare("eq", distance % step, 0))
    places[at] = distance // step
    written = cast(source.at(places), x.dtype)
    if not checks or written is kept:  # what it holds already, as after a write in place
        return ctx.pointwise(dims, written)
    return ctx.pointwise(dims, Masked(_all(checks), written, kept))


@lowers("select_scatter")
def select_scatter(
    ctx: LoweringContext, x: TensorExpr, source: TensorExpr, axis: int, index: int
) -> Lowered:
    """`x` with one place of an axis replaced."""
    dims = dimensions(x.shape)
    places = [dim.expr for dim in dims]
    at = _axis(axis, len(dims))
    fixed = x.shape[at] + as_index(index) if index < 0 else index
    chosen = _compare("eq", places[at], fixed)
    others = [place for number, place in enumerate(places) if number != at]
    written = cast(source.at(others), x.dtype)
    return ctx.pointwise(dims, Masked(chosen, written, x.at(places)))


@lowers("diagonal_scatter")
def diagonal_scatter(
    ctx: LoweringContext, x: TensorExpr, source: TensorExpr, offset: int, first: int, second: int
) -> Lowered:
    """`x` with a diagonal replaced."""
    dims = dimensions(x.shape)
    places = [dim.expr for dim in dims]
    a, b = _axis(first, len(dims)), _axis(second, len(dims))
    others = [place for number, place in enumerate(places) if number not in (a, b)]
    kept = x.at(places)
    if not source.shape[-1].as_int():
        return ctx.pointwise(dims, kept)
    along = places[a] if offset >= 0 else places[b]
    written = cast(source.at([*others, along]), x.dtype)
    on_it = _compare("eq", places[b], places[a] + offset)
    return ctx.pointwise(dims, Masked(on_it, written, kept))


@lowers("diag_embed")
def diag_embed(
    ctx: LoweringContext, x: TensorExpr, offset: int, first: int, second: int
) -> Lowered:
    """The last axis along a diagonal, between zeros."""
    dims = dimensions(ctx.result.shape)
    places = [dim.expr for dim in dims]
    a, b = _axis(first, len(dims)), _axis(second, len(dims))
    others = [place for number, place in enumerate(places) if number not in (a, b)]
    zero = constant(0, x.dtype)
    if not x.shape[-1].as_int():
        return ctx.pointwise(dims, zero)
    if a > b:  # the diagonal is counted from the first of the two as given
        a, b, offset = b, a, -offset
    along = places[a] if offset >= 0 else places[b]
    on_it = _compare("eq", places[b], places[a] + offset)
    return ctx.pointwise(dims, Masked(on_it, x.at([*others, along]), zero))


@lowers("eye")
def eye(ctx: LoweringContext, n: Any, *rest: Any) -> Lowered:
    return _eye(ctx)


@lowers("eye.m")
def eye_of_columns(ctx: LoweringContext, n: Any, m: Any, *rest: Any) -> Lowered:
    return _eye(ctx)


def _eye(ctx: LoweringContext) -> Lowered:
    row, column = dims = dimensions(ctx.result.shape)
    dtype = ctx.dtype_of(ctx.result)
    return TensorExpr(dims, cast(_compare("eq", row.expr, column.expr), dtype))
