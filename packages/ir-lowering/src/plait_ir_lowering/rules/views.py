"""Views: the same values at other coordinates, and strides where they exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plait_ir_lowering.context import LoweringContext
from plait_ir_lowering.ir.graph import Layout, TensorRef, row_major
from plait_ir_lowering.ir.index import ZERO, IndexExpr, as_index
from plait_ir_lowering.ir.index_queries import substitute
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.tensors import TensorExpr, dimensions


def view_at(
    ctx: LoweringContext,
    x: TensorExpr,
    places: Sequence[IndexExpr],
    dims: Sequence[Any],
    result: torch.Tensor | None = None,
) -> TensorExpr:
    """`x` at `places`, which are expressions over `dims`, the dimensions of the result."""
    fake = ctx.result if result is None else result
    return TensorExpr(tuple(dims), x.at(places), _strided(ctx, x, places, dims, fake))


def _strided(
    ctx: LoweringContext,
    x: TensorExpr,
    places: Sequence[IndexExpr],
    dims: Sequence[Any],
    fake: torch.Tensor,
) -> TensorRef | None:
    if x.ref is None or not lies_as_traced(ctx, x.ref):
        return None
    buffer = ctx.buffers[x.ref.buffer]
    offset = ZERO
    if all(dim.extent is not ZERO for dim in dims):
        # Not the offset of the trace: a pass may have put a view in the place of a copy.
        first = dict.fromkeys(dims, ZERO)
        own = x.ref.view or buffer.layout
        offset = own.linear([substitute(place, first) for place in places])
    layout = Layout.of(list(fake.shape), list(fake.stride()), offset)
    return TensorRef(buffer.name, None if layout == buffer.layout else layout)


def lies_as_traced(ctx: LoweringContext, operand: TensorRef) -> bool:
    """Whether the first operand lies in memory as the trace says, so that strides of its views can
    be taken from there; a copy of a view with holes does not."""
    traced = ctx.traced(0)
    layout = operand.view or ctx.buffers[operand.buffer].layout
    strides = zip(traced.shape, traced.stride(), layout.stride, strict=True)
    return all(as_index(step) is own or size == 1 for size, step, own in strides)


def _dims(ctx: LoweringContext) -> tuple[Any, ...]:
    return dimensions(ctx.result.shape)


def _axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


@lowers("view", "reshape", "_unsafe_view", kind="view")
def view(ctx: LoweringContext, x: TensorExpr, size: Any) -> Lowered:
    dims = _dims(ctx)
    position = ZERO
    for dim, stride in zip(dims, row_major([d.extent for d in dims]), strict=True):
        position = position + dim.expr * stride
    places = []
    empty = ctx.result.numel() == 0  # there is no element, and no divisor
    for extent, stride in zip(x.shape, row_major(x.shape), strict=True):
        if empty or (extent.is_constant and extent.as_int() <= 1):
            places.append(ZERO)
        else:
            places.append(position // stride % extent)
    return view_at(ctx, x, places, dims)


@lowers("permute", kind="view")
def permute(ctx: LoweringContext, x: TensorExpr, order: Sequence[int]) -> Lowered:
    dims = _dims(ctx)
    places: list[IndexExpr] = [ZERO] * len(order)
    for position, axis in enumerate(order):
        places[_axis(axis, len(order))] = dims[position].expr
    return view_at(ctx, x, places, dims)


@lowers("transpose.int", kind="view")
def transpose(ctx: LoweringContext, x: TensorExpr, first: int, second: int) -> Lowered:
    order = list(range(len(x.dims)))
    if order:
        a, b = _axis(first, len(order)), _axis(second, len(order))
        order[a], order[b] = order[b], order[a]
    return permute(ctx, x, order)


@lowers("t", kind="view")
def t(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return permute(ctx, x, list(reversed(range(len(x.dims)))))


@lowers("expand", kind="view")
def expand(ctx: LoweringContext, x: TensorExpr, size: Any, implicit: bool) -> Lowered:
    dims = _dims(ctx)
    own = dims[len(dims) - len(x.dims) :]
    places = [
        ZERO if extent.is_constant and extent.as_int() == 1 else dim.expr
        for dim, extent in zip(own, x.shape, strict=True)
    ]
    return view_at(ctx, x, places, dims)


@lowers("unsqueeze", kind="view")
def unsqueeze(ctx: LoweringContext, x: TensorExpr, axis: int) -> Lowered:
    dims = _dims(ctx)
    at = _axis(axis, len(dims))
    return view_at(ctx, x, [d.expr for n, d in enumerate(dims) if n != at], dims)


@lowers("squeeze", kind="view")
def squeeze(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return _squeeze(ctx, x, range(len(x.dims)))


@lowers("squeeze.dim", kind="view")
def squeeze_dim(ctx: LoweringContext, x: TensorExpr, axis: int) -> Lowered:
    return _squeeze(ctx, x, [axis])


@lowers("squeeze.dims", kind="view")
def squeeze_dims(ctx: LoweringContext, x: TensorExpr, axes: Sequence[int]) -> Lowered:
    return _squeeze(ctx, x, axes)


def _squeeze(ctx: LoweringContext, x: TensorExpr, axes: Sequence[int]) -> Lowered:
    dims = _dims(ctx)
    gone = {_axis(axis, len(x.dims)) for axis in axes}
    left = iter(dims)
    places = [
        ZERO if n in gone and extent.is_constant and extent.as_int() == 1 else next(left).expr
        for n, extent in enumerate(x.shape)
    ]
    return view_at(ctx, x, places, dims)


@lowers("slice.Tensor", kind="view")
def slice_(
    ctx: LoweringContext, x: TensorExpr, axis: int, start: Any, end: Any, step: Any
) -> Lowered:
    dims = _dims(ctx)
    at = _axis(axis, len(dims))
    extent = ctx.traced_size(0, at)
    first = 0 if start is None else min(max(start + extent if start < 0 else start, 0), extent)
    places = [d.expr for d in dims]
    places[at] = places[at] * step + as_index(first)
    return view_at(ctx, x, places, dims)


@lowers("select.int", kind="view")
def select(ctx: LoweringContext, x: TensorExpr, axis: int, index: int) -> Lowered:
    dims = _dims(ctx)
    at = _axis(axis, len(x.dims))
    fixed = x.shape[at] + as_index(index) if index < 0 else as_index(index)
    left = iter(dims)
    places = [fixed if n == at else next(left).expr for n in range(len(x.dims))]
    return view_at(ctx, x, places, dims)


@lowers("split.Tensor", kind="view")
def split(ctx: LoweringContext, x: TensorExpr, size: Any, axis: int) -> Lowered:
    return _pieces(ctx, x, axis)


@lowers("split_with_sizes", kind="view")
def split_with_sizes(ctx: LoweringContext, x: TensorExpr, sizes: Any, axis: int) -> Lowered:
    return _pieces(ctx, x, axis)


def _pieces(ctx: LoweringContext, x: TensorExpr, axis: int) -> Lowered:
    pieces: list[TensorExpr] = []
    start = ZERO
    at = _axis(axis, len(x.dims))
    for fake in ctx.results:
        dims = dimensions(fake.shape)
        places = [d.expr for d in dims]
        places[at] = places[at] + start
        start = start + as_index(fake.shape[at])
        pieces.append(view_at(ctx, x, places, dims, fake))
    return tuple(pieces)


@lowers("unbind.int", kind="view")
def unbind(ctx: LoweringContext, x: TensorExpr, axis: int) -> Lowered:
    at = _axis(axis, len(x.dims))
    pieces: list[TensorExpr] = []
    for number, fake in enumerate(ctx.results):
        dims = dimensions(fake.shape)
        left = iter(dims)
        places = [as_index(number) if n == at else next(left).expr for n in range(len(x.dims))]
        pieces.append(view_at(ctx, x, places, dims, fake))
    return tuple(pieces)


@lowers("alias", "detach", "lift_fresh_copy", "lift_fresh", kind="view")
def alias(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return x


@lowers("diagonal", kind="view")
def diagonal(ctx: LoweringContext, x: TensorExpr, offset: int, first: int, second: int) -> Lowered:
    dims = _dims(ctx)
    a, b = _axis(first, len(x.dims)), _axis(second, len(x.dims))
    along = dims[-1].expr
    left = iter(dims[:-1])
    places = []
    for n in range(len(x.dims)):
        if n == a:
            places.append(along + max(-offset, 0))
        elif n == b:
            places.append(along + max(offset, 0))
        else:
            places.append(next(left).expr)
    return view_at(ctx, x, places, dims)
