"""Scatters: values combined into the places that a tensor of indices names.

A scatter starts from a tensor as it lies in memory, and combines values into it: on a CPU in the
order in which eager's deterministic kernels do, row-major over what is scattered; on a GPU in any
order, as eager's kernels do. Where deterministic algorithms are asked for, sums of floats have a
fixed order there (`ordered_sums.py`), what no order changes is combined as always, and the rest is
ATen's, as is what eager refuses then. Indices are checked as those of gathers are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Layout, Scatter
from plait_ir_lowering.ir.index import ZERO, IndexExpr, Var, as_index
from plait_ir_lowering.ir.ops import PARTS, ScatterKind, TypeMismatchError
from plait_ir_lowering.ir.values import Const, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.atomics import atomic
from plait_ir_lowering.rules.gathering import checked_index
from plait_ir_lowering.rules.ordered_sums import ordered_sum
from plait_ir_lowering.rules.writes import Writes
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_ir_lowering.torch_types import to_torch_dtype


def can_scatter(ctx: LoweringContext, dtype: DType, kind: ScatterKind = ScatterKind.ASSIGN) -> bool:
    """Whether loops can combine elements of a type at computed places on the node's device.

    Where deterministic algorithms are asked for, what is combined decides too (`scatter_into`).
    """
    if scatters_in_order(ctx, dtype):
        return True
    plain = dtype.itemsize > 1 or not dtype.is_float
    on_gpu = ctx.result.device.type == "cuda"
    return plain and on_gpu and dtype not in PARTS and atomic(kind, dtype) is not None


def scatters_in_order(ctx: LoweringContext, dtype: DType) -> bool:
    """Whether loops can do so, and combine what goes to one place in the order of the points."""
    plain = dtype.itemsize > 1 or not dtype.is_float
    return plain and ctx.result.device.type == "cpu"


def eager_refuses(ctx: LoweringContext) -> bool:
    """Whether deterministic algorithms are asked for on a GPU: for operators that are refused
    then, which ATen is called to do."""
    return ctx.options.deterministic and ctx.result.device.type == "cuda"


def _any_order_does(kind: ScatterKind, value: Value) -> bool:
    """Whether a combination is the same in whichever order points come: of integers, of extremes,
    and where all points have the same value."""
    if isinstance(value, Const) or kind in (ScatterKind.MAX, ScatterKind.MIN):
        return True
    return kind is not ScatterKind.ASSIGN and not value.dtype.is_float


def scatter_into(
    ctx: LoweringContext,
    start: TensorExpr,
    writes: Writes,
    kind: ScatterKind,
    value: Value,
    like: torch.Tensor | None = None,
) -> TensorExpr | None:
    """A buffer like the node's result, or `like`: `start`, then `value` combined into it.

    A tensor without dimensions may be given one place, of which only the check remains. None where
    ATen is to be called, since deterministic algorithms are asked for. Raises TypeMismatchError for
    complex numbers that are neither assigned nor added.
    """
    if start.dtype in PARTS and kind not in (ScatterKind.ASSIGN, ScatterKind.ADD):
        raise TypeMismatchError(f"{kind.value} of complex numbers at computed places")
    target = ctx.result if like is None else like
    value = cast(value, ctx.dtype_of(target))
    place = tuple(writes.place)
    if len(place) > len(start.dims):
        first = cast(place[0], DType.i64) if isinstance(place[0], Value) else None
        if first is not None:  # all checked places are 0
            at_zero = Op("eq", [first, constant(0, DType.i64)])
            value = Op("where", [at_zero, value, constant(0, value.dtype)])
        place = ()
    writes = replace(writes, place=place)
    if target.device.type == "cpu":
        return _scatter(ctx, start, writes, kind, value, target)
    free = not ctx.options.deterministic or is_empty(writes.ranges)
    if free or _any_order_does(kind, value):
        return _by_atomics(ctx, start, writes, kind, value, target)
    if kind is ScatterKind.ADD:
        return ordered_sum(ctx, start, writes, value, target)
    return None


def scatter_constant(
    ctx: LoweringContext,
    start: TensorExpr,
    writes: Writes,
    kind: ScatterKind,
    value: Const,
    like: torch.Tensor | None = None,
) -> TensorExpr:
    """`scatter_into` of one value, which any order does."""
    made = scatter_into(ctx, start, writes, kind, value, like)
    assert made is not None, "a constant is combined in any order"
    return made


def _by_atomics(
    ctx: LoweringContext,
    start: TensorExpr,
    writes: Writes,
    kind: ScatterKind,
    value: Value,
    target: torch.Tensor,
) -> TensorExpr:
    """A scatter in a type that is combined by atomic operations, converted back where it is read.

    Raises TypeMismatchError where there is none.
    """
    how = atomic(kind, value.dtype)
    if how is None:
        raise TypeMismatchError(f"{kind.value} of {value.dtype} by atomic operations")
    if how.dtype is value.dtype:
        return _scatter(ctx, start, writes, how.kind, value, target)
    dtype = to_torch_dtype(how.dtype)
    wide = target.new_empty_strided(target.shape, target.stride(), dtype=dtype)
    start = TensorExpr(start.dims, how.enter(cast(start.value, value.dtype)))
    made = _scatter(ctx, start, writes, how.kind, how.enter(value), wide)
    return TensorExpr(made.dims, how.leave(made.value))


def _scatter(
    ctx: LoweringContext,
    start: TensorExpr,
    writes: Writes,
    kind: ScatterKind,
    value: Value,
    target: torch.Tensor,
) -> TensorExpr:
    if start.ref is None or start.ref.view is not None or not _lies_as(ctx, start, target):
        start = ctx.pointwise(start.dims, start.value, target)
    assert start.ref is not None
    if writes.counted is not None:
        nothing = constant(neutral(kind, value.dtype), value.dtype)
        value = Op("where", [writes.counted, value, nothing])
    body = Scatter(start.ref.buffer, writes.ranges, tuple(writes.place), kind, value)
    return ctx.define(body, target)


def _lies_as(ctx: LoweringContext, start: TensorExpr, target: torch.Tensor) -> bool:
    """Whether a whole buffer lies in memory as a result has to."""
    assert start.ref is not None
    buffer = ctx.buffers[start.ref.buffer]
    wanted = Layout.of(list(target.shape), list(target.stride()))
    same = buffer.dtype is start.dtype is ctx.dtype_of(target) and start.ref.dtype is None
    return same and buffer.layout == wanted


def filled(
    ctx: LoweringContext, number: bool | int | float, like: torch.Tensor | None = None
) -> TensorExpr:
    """An expression with one number everywhere, in the shape of the node's result or of `like`."""
    target = ctx.result if like is None else like
    value = constant(number, ctx.dtype_of(target))
    return TensorExpr(dimensions(list(target.shape)), value)


def row_of(x: TensorExpr) -> TensorExpr:
    """`x`, or a row of one element for a tensor without dimensions, as eager takes it."""
    return x if x.dims else TensorExpr((Var("i0", 1),), x.value)


def sizes_of(x: TensorExpr) -> Sequence[IndexExpr]:
    """The sizes of `x`, as those of `row_of(x)`."""
    return x.shape if x.dims else (as_index(1),)


def is_empty(ranges: Sequence[Var]) -> bool:
    """Whether there is certainly no point."""
    return any(var.extent is ZERO for var in ranges)


def in_rows(
    x: TensorExpr, axis: int, ranges: tuple[Var, ...], chosen: Value, *, negative: bool
) -> Writes | None:
    """Points that go to their own coordinates, but to `chosen` along `axis`.

    None where each index would be wrong: there is no element that a wrong one could go to.
    """
    size = sizes_of(x)[axis]
    if size is ZERO and not is_empty(ranges):
        return None
    place: list[IndexExpr | Value] = [var.expr for var in ranges]
    place[axis] = checked_index(chosen, size, negative=negative)
    return Writes(ranges, place)


def _along(
    ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr, kind: ScatterKind
) -> Writes | None:
    """Loops over an index of the rank of `x`, and where each of its points goes along `axis`."""
    given = row_of(indices)
    if not can_scatter(ctx, x.dtype, kind) or len(given.dims) != len(sizes_of(x)):
        return None
    ranges = dimensions(given.shape, "w")
    chosen = given.at([var.expr for var in ranges])
    return in_rows(x, axis % len(ranges), ranges, chosen, negative=False)


@lowers("scatter_add")
def scatter_add(
    ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr, source: TensorExpr
) -> Lowered:
    return _scattered(ctx, x, axis, indices, source, ScatterKind.ADD)


@lowers("scatter.src")
def scatter(
    ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr, source: TensorExpr
) -> Lowered:
    return _scattered(ctx, x, axis, indices, source, ScatterKind.ASSIGN)


@lowers("scatter.value")
def scatter_number(
    ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr, number: Any
) -> Lowered:
    return _scattered(ctx, x, axis, indices, number, ScatterKind.ASSIGN)


_OLD_KINDS = {"add": ScatterKind.ADD, "multiply": ScatterKind.MUL}


@lowers("scatter.reduce", "scatter.value_reduce")
def scatter_combining(
    ctx: LoweringContext, x: TensorExpr, axis: int, indices: TensorExpr, source: Any, reduce: str
) -> Lowered:
    if eager_refuses(ctx):  # some of them, by the version
        return None
    return _scattered(ctx, x, axis, indices, source, _OLD_KINDS[reduce])


def _scattered(
    ctx: LoweringContext,
    x: TensorExpr,
    axis: int,
    indices: TensorExpr,
    source: Any,
    kind: ScatterKind,
) -> TensorExpr | None:
    writes = _along(ctx, x, axis, indices, kind)
    if writes is None:
        return None
    if not isinstance(source, TensorExpr):
        return scatter_into(ctx, x, writes, kind, constant(source, x.dtype))
    given = row_of(source)
    if len(given.dims) != len(writes.ranges) or given.dtype is not x.dtype:
        return None
    return scatter_into(ctx, x, writes, kind, given.at(writes.points))


_KINDS = {
    "sum": ScatterKind.ADD,
    "mean": ScatterKind.ADD,
    "prod": ScatterKind.MUL,
    "amax": ScatterKind.MAX,
    "amin": ScatterKind.MIN,
}


@lowers("scatter_reduce.two")
def scatter_reduce(
    ctx: LoweringContext,
    x: TensorExpr,
    axis: int,
    indices: TensorExpr,
    source: TensorExpr,
    reduce: str,
    include_self: bool,
) -> Lowered:
    writes, given = _along(ctx, x, axis, indices, _KINDS[reduce]), row_of(source)
    if writes is None or len(given.dims) != len(writes.ranges) or given.dtype is not x.dtype:
        return None
    return combine(ctx, x, writes, given.at(writes.points), reduce, include_self=include_self)


def combine(
    ctx: LoweringContext,
    x: TensorExpr,
    writes: Writes,
    value: Value,
    reduce: str,
    *,
    include_self: bool,
) -> Lowered:
    """`x` with values combined into it; `reduce` is eager's name, as "amax"."""
    kind, start = _KINDS[reduce], x
    if x.dtype in PARTS or not can_scatter(ctx, x.dtype, kind):
        return None
    if is_empty(writes.ranges):
        include_self = True
    if not include_self:
        nothing = Const(neutral(kind, x.dtype), x.dtype)
        start = scatter_constant(ctx, x, writes, ScatterKind.ASSIGN, nothing)
    total = scatter_into(ctx, start, writes, kind, value)
    if reduce != "mean" or total is None:
        return total
    first = filled(ctx, 1 if include_self else 0)
    one = Const(1, x.dtype)
    counts = scatter_constant(ctx, first, writes, ScatterKind.ADD, one)
    dims = dimensions(total.shape)
    points = [dim.expr for dim in dims]
    count, zero = counts.at(points), constant(0, x.dtype)
    count = Op("where", [Op("eq", [count, zero]), constant(1, x.dtype), count])
    divide = "div" if x.dtype.is_float else "floordiv"
    return ctx.pointwise(dims, Op(divide, [total.at(points), count]))


def neutral(kind: ScatterKind, dtype: DType) -> bool | int | float:
    """What a kind leaves every other value as it is when it is combined with."""
    match kind:
        case ScatterKind.MUL:
            return 1
        case ScatterKind.MAX | ScatterKind.MIN if dtype.is_float:
            return -math.inf if kind is ScatterKind.MAX else math.inf
        case ScatterKind.MAX | ScatterKind.MIN if dtype is DType.bool_:
            return kind is ScatterKind.MIN
        case ScatterKind.MAX | ScatterKind.MIN:
            limits = torch.iinfo(to_torch_dtype(dtype))
            return limits.min if kind is ScatterKind.MAX else limits.max
    return 0
