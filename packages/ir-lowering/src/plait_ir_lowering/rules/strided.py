"""`as_strided` and its inverse: elements named by where they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plait_ir_lowering.context import LoweringContext, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Layout, Pointwise, TensorRef
from plait_ir_lowering.ir.index import ONE, ZERO, IndexExpr, Var, as_index
from plait_ir_lowering.ir.open_division import is_below
from plait_ir_lowering.ir.values import IndexValue, Load, Masked, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.views import lies_as_traced
from plait_ir_lowering.tensors import TensorExpr, dimensions


def _linear(start: IndexExpr | int, dims: Sequence[Var], strides: Sequence[Any]) -> IndexExpr:
    """The place in memory of the element at `dims`."""
    place = as_index(start)
    for dim, stride in zip(dims, strides, strict=True):
        place = place + dim.expr * as_index(stride)
    return place


def _coordinates(place: IndexExpr, layout: Layout) -> list[IndexExpr] | None:
    """The element of a dense layout that lies at `place`; None if the layout has holes."""
    found: list[IndexExpr] = [ZERO] * len(layout.size)
    if ZERO in layout.size:  # nothing is read
        return found
    expected = ONE
    for axis in _inwards(layout):
        size = layout.size[axis]
        if size is ONE:
            continue
        if layout.stride[axis] is not expected:
            return None
        found[axis] = place // expected % size
        expected = expected * size
    return found


def _inwards(layout: Layout) -> list[int]:
    """The axes, that whose elements lie side by side first: the last one where sizes are open."""
    axes = range(len(layout.size))
    if not all(each.is_constant for each in (*layout.size, *layout.stride)):
        return list(reversed(axes))
    return sorted(axes, key=lambda n: (layout.stride[n].as_int(), layout.size[n].as_int()))


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
    strides = [as_index(step) for step in result.stride()]
    start = int(result.storage_offset()) - ctx.storage_offsets[buffer.name]
    view = Layout.of([dim.extent for dim in dims], strides, start)
    place = _linear(start, dims, strides)
    coordinates = _coordinates(place, buffer.layout)
    if coordinates is None or buffer.dtype is not x.dtype:
        raise ctx.error("it reads memory that is laid out otherwise than its result")
    if not is_below(place, buffer.layout.numel) and not _ends_within(ctx, buffer.layout):
        raise ctx.error("it reads memory beyond its operand")
    return TensorExpr(
        dims, Load(buffer.name, coordinates, buffer.dtype), TensorRef(buffer.name, view)
    )


def _ends_within(ctx: LoweringContext, layout: Layout) -> bool:
    """Whether a result has no element beyond the memory of its operand; noted for open sizes."""
    operand, result = ctx.traced(0), ctx.result
    if not result.numel():
        return True
    if as_index(operand.numel()) is not layout.numel:
        return False
    extents = zip(result.shape, result.stride(), strict=True)
    start = result.storage_offset() - operand.storage_offset()
    return bool(start >= 0 and start + sum((n - 1) * step for n, step in extents) < operand.numel())


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
    place = _linear(first - start, dims, memory.stride())
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
