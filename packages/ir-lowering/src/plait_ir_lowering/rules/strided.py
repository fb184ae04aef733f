"""`as_strided` and its inverse: elements named by where they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plait_ir_lowering.context import LoweringContext, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Layout, Pointwise, TensorRef
from plait_ir_lowering.ir.index import IndexExpr, Var, as_index, bounds
from plait_ir_lowering.ir.values import IndexValue, Load, Masked, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.views import lies_as_traced
from plait_ir_lowering.tensors import TensorExpr, dimensions


def _linear(start: IndexExpr | int, dims: Sequence[Var], strides: Sequence[int]) -> IndexExpr:
    """The place in memory of the element at `dims`."""
    place = as_index(start)
    for dim, stride in zip(dims, strides, strict=True):
        place = place + dim.expr * stride
    return place


def _coordinates(place: IndexExpr, layout: Layout) -> list[IndexExpr] | None:
    """The element of a dense layout that lies at `place`; None if the layout has holes."""
    sizes = [size.as_int() for size in layout.size]
    strides = [stride.as_int() for stride in layout.stride]
    found: list[IndexExpr] = [as_index(0)] * len(sizes)
    expected = 1
    for axis in sorted(range(len(sizes)), key=lambda n: (strides[n], sizes[n])):
        if sizes[axis] == 1:
            continue
        if strides[axis] != expected:
            return None
        found[axis] = place // expected % sizes[axis]
        expected *= sizes[axis]
    return found


@lowers("as_strided", kind="view")
def as_strided(
    ctx: LoweringContext, x: TensorExpr, size: Any, stride: Any, storage_offset: int | None
) -> Lowered:
    if x.ref is None or not _begins_as_traced(ctx, x.ref):
        x = ctx.define(Pointwise(x.dims, x.value), ctx.traced(0))
    if x.ref is None or not _begins_as_traced(ctx, x.ref):
        raise ctx.error("it reads memory that is laid out otherwise than its result")
    buffer = ctx.buffers[x.ref.buffer]
    result = ctx.result
    dims = dimensions(result.shape)
    strides = [int(step) for step in result.stride()]
    start = int(result.storage_offset()) - ctx.storage_offsets[buffer.name]
    view = Layout.of([dim.extent for dim in dims], strides, start)
    place = _linear(start, dims, strides)
    low, high = bounds(place)
    within = low is not None and high is not None and low >= 0
    within = within and high is not None and high < buffer.layout.numel.as_int()
    coordinates = _coordinates(place, buffer.layout)
    if coordinates is None or buffer.dtype is not x.dtype:
        raise ctx.error("it reads memory that is laid out otherwise than its result")
    if not within and result.numel():
        raise ctx.error("it reads memory beyond its operand")
    return TensorExpr(
        dims, Load(buffer.name, coordinates, buffer.dtype), TensorRef(buffer.name, view)
    )


def _begins_as_traced(ctx: LoweringContext, operand: TensorRef) -> bool:
    """Whether the first operand lies in memory as the trace says, and begins there."""
    if not lies_as_traced(ctx, operand):
        return False
    traced = ctx.traced(0)
    layout = operand.view or ctx.buffers[operand.buffer].layout
    begin = layout.offset + ctx.storage_offsets[operand.buffer]
    return as_index(traced.storage_offset()) is begin or not traced.numel()


@lowers("as_strided_scatter")
def as_strided_scatter(
    ctx: LoweringContext,
    x: TensorExpr,
    source: TensorExpr,
    size: Any,
    stride: Any,
    storage_offset: int | None,
) -> Lowered:
    if not source.dims:
        return None
    memory = ctx.traced(0)
    first = int(memory.storage_offset())
    start = first if storage_offset is None else storage_offset
    dims = dimensions(ctx.result.shape)
    place = _linear(first - start, dims, [int(step) for step in memory.stride()])
    found = _scattered(place, source, [int(step) for step in stride])
    if found is None:
        return None
    coordinates, inside = found
    kept = x.at([dim.expr for dim in dims])
    return ctx.pointwise(dims, Masked(inside, source.at(coordinates), kept))


def _scattered(
    place: IndexExpr, source: TensorExpr, strides: Sequence[int]
) -> tuple[list[IndexExpr], Value] | None:
    """Which element of `source` was written to `place`, and whether one was.

    None where several elements may have been written to one place.
    """
    sizes = [extent.as_int() for extent in source.shape]
    coordinates: list[IndexExpr] = [as_index(0)] * len(sizes)
    inside: Value = Op("ge", [IndexValue(place), constant(0, DType.i64)])
    remaining = place
    reach = _reach(sizes, strides)
    for axis in sorted(range(len(sizes)), key=lambda n: strides[n], reverse=True):
        if sizes[axis] == 1:
            continue
        reach -= (sizes[axis] - 1) * strides[axis]
        if strides[axis] <= reach:
            return None
        position = remaining // strides[axis]
        remaining = remaining % strides[axis]
        coordinates[axis] = position
        limit = constant(sizes[axis], DType.i64)
        inside = Op("logical_and", [inside, Op("lt", [IndexValue(position), limit])])
    exact = Op("eq", [IndexValue(remaining), constant(0, DType.i64)])
    return coordinates, Op("logical_and", [inside, exact])


def _reach(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """How far behind the first element the last one lies."""
    return sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
