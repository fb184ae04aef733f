"""Tensors from numbers; they are expressions, never buffers of their own."""

from __future__ import annotations

from typing import Any

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import IndexValue, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.tensors import TensorExpr, dimensions


def _filled(ctx: LoweringContext, value: Any) -> Lowered:
    if ctx.result.is_complex():
        return None
    dims = dimensions([int(size) for size in ctx.result.shape])
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


@lowers("zeros", "zeros_like", "new_zeros")
def zeros(ctx: LoweringContext, *rest: Any) -> Lowered:
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
    dims = dimensions([int(size) for size in ctx.result.shape])
    position = dims[0].expr
    if dtype.is_integer:  # ATen truncates both before it counts
        start, step = int(start), int(step)
    if isinstance(start, int) and isinstance(step, int):
        return TensorExpr(dims, cast(IndexValue(position * step + start), dtype))
    wide = DType.f64  # as ATen, for every float dtype
    count: Value = Op("to", [IndexValue(position)], wide)
    steps = Op("mul", [count, constant(step, wide)])
    return TensorExpr(dims, cast(Op("add", [steps, constant(start, wide)]), dtype))
