"""Tensors from numbers; they are expressions, never buffers of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import ZERO, as_index
from plait_ir_lowering.ir.ops import PARTS
from plait_ir_lowering.ir.values import IndexValue, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.tensors import TensorExpr, dimensions


def _filled(ctx: LoweringContext, value: Any) -> Lowered:
    dims = dimensions(ctx.result.shape)
    return TensorExpr(dims, constant(value, ctx.dtype_of(ctx.result)))


@lowers("full")
def full(
    ctx: LoweringContext, size: Any, value: Any, dtype: Any, layout: Any, device: Any, pin: Any
) -> Lowered:
    return _filled(ctx, value)


@lowers("full_like")
def full_like(
    ctx: LoweringContext,
    x: TensorExpr,
    value: Any,
    dtype: Any,
    layout: Any,
    device: Any,
    pin: Any,
    memory_format: Any,
) -> Lowered:
    return _filled(ctx, value)


@lowers("fill.Scalar")
def fill(ctx: LoweringContext, x: TensorExpr, value: Any) -> Lowered:
    return _filled(ctx, value)


@lowers("fill.Tensor")
def fill_element(ctx: LoweringContext, x: TensorExpr, value: TensorExpr) -> Lowered:
    if value.dtype in PARTS and x.dtype not in PARTS:
        return None  # an error, which ATen raises
    return TensorExpr(x.dims, cast(value.at([ZERO] * len(value.dims)), x.dtype))


@lowers("zeros", "zeros_like", "new_zeros")
def zeros(ctx: LoweringContext, *rest: Any) -> Lowered:
    return _filled(ctx, 0)


@lowers("empty.memory_format", "empty_like", "new_empty")
def empty(ctx: LoweringContext, *rest: Any) -> Lowered:
    """Whatever is in memory: zeros, which need none."""
    return _filled(ctx, 0)


@lowers("ones", "ones_like", "new_ones")
def ones(ctx: LoweringContext, *rest: Any) -> Lowered:
    return _filled(ctx, 1)


@lowers("new_full")
def new_full(ctx: LoweringContext, x: TensorExpr, size: Any, value: Any, *rest: Any) -> Lowered:
    return _filled(ctx, value)


@lowers("scalar_tensor")
def scalar_tensor(ctx: LoweringContext, value: Any, *rest: Any) -> Lowered:
    return _filled(ctx, value)


@lowers("arange")
def arange_end(ctx: LoweringContext, end: Any, *rest: Any) -> Lowered:
    return _arange(ctx, 0, 1)


@lowers("arange.start")
def arange_start(ctx: LoweringContext, start: Any, end: Any, *rest: Any) -> Lowered:
    return _arange(ctx, start, 1)


@lowers("arange.start_step")
def arange_start_step(ctx: LoweringContext, start: Any, end: Any, step: Any, *rest: Any) -> Lowered:
    return _arange(ctx, start, step)


def _arange(ctx: LoweringContext, start: Any, step: Any) -> Lowered:
    dtype = ctx.dtype_of(ctx.result)
    dims = dimensions(ctx.result.shape)
    position = dims[0].expr
    if dtype.is_integer:  # ATen truncates both before it counts
        start, step = _whole(start), _whole(step)
    if isinstance(start, int | torch.SymInt) and isinstance(step, int | torch.SymInt):
        place = position * as_index(step) + as_index(start)
        return TensorExpr(dims, cast(IndexValue(place), dtype))
    wide = DType.f64  # as ATen, for every float dtype
    count: Value = Op("to", [IndexValue(position)], wide)
    steps = Op("mul", [count, constant(step, wide)])
    return TensorExpr(dims, cast(Op("add", [steps, constant(start, wide)]), dtype))


def _whole(number: Any) -> int | torch.SymInt:
    return number if isinstance(number, torch.SymInt) else int(number)


@lowers(
    *("linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor"),
)
def linspace(ctx: LoweringContext, start: Any, end: Any, steps: int, *rest: Any) -> Lowered:
    """Counted from the nearer end, as ATen does, so that both ends are exact."""
    return _spaced(ctx, start, end, steps, lambda value: value)


@lowers("logspace", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar", "logspace.Scalar_Tensor")
def logspace(
    ctx: LoweringContext, start: Any, end: Any, steps: int, base: float, *rest: Any
) -> Lowered:
    """Powers of `base`."""

    def power(value: Value) -> Value:
        return Op("pow", [constant(base, value.dtype), value])

    return _spaced(ctx, start, end, steps, power)


def _spaced(
    ctx: LoweringContext, start: Any, end: Any, steps: int, finish: Callable[[Value], Value]
) -> Lowered:
    dtype = ctx.dtype_of(ctx.result)
    if dtype not in (DType.f32, DType.f64):
        return None
    dims = dimensions([steps])
    first, last = _number(start, dtype), _number(end, dtype)
    if steps < 2:
        return TensorExpr(dims, finish(first))
    step = Op("div", [Op("sub", [last, first]), constant(steps - 1, dtype)])
    position = dims[0].expr
    count, left = (Op("to", [IndexValue(e)], dtype) for e in (position, steps - 1 - position))
    rising = Op("add", [first, Op("mul", [step, count])])
    falling = Op("sub", [last, Op("mul", [step, left])])
    is_near = Op("lt", [IndexValue(position), constant(steps // 2, DType.i64)])
    return TensorExpr(dims, finish(Op("where", [is_near, rising, falling])))


def _number(value: Any, dtype: DType) -> Value:
    """A number, or a tensor of one."""
    return cast(value.value, dtype) if isinstance(value, TensorExpr) else constant(value, dtype)
