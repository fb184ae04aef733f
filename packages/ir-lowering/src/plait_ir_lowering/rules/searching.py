"""Searches in sorted sequences: halvings, unrolled to as many as the sequence's length takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import IndexExpr
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.gathering import gathered, narrow, readable
from plait_ir_lowering.tensors import NumberExpr, TensorExpr, dimensions
from plait_ir_lowering.torch_types import from_torch_dtype

_MOST_HALVINGS = 16
"""A search through longer sequences waits for the memory, whoever does it; it is ATen's."""


def _first_behind(
    sequence: TensorExpr, row: Sequence[IndexExpr], value: Value, size: int, *, right: bool
) -> Value:
    """The first place of a row of `size` elements that is not before `value`, as an i32.

    As in ATen, where an element that is not comparable is before everything; so the places that
    are looked at are ATen's, too.
    """
    low, high = narrow(0), narrow(size)
    behind = "gt" if right else "ge"
    for _ in range(size.bit_length()):
        half = Op("rshift", [Op("sub", [high, low]), narrow(1)])
        middle = Op("add", [low, half])
        inside = cast(Op("minimum", [middle, narrow(size - 1)]), DType.i64)  # where none is left
        element = cast(gathered(sequence, [*row, inside]), value.dtype)
        before = Op("logical_not", [Op(behind, [element, value])])
        further = Op("logical_and", [before, Op("lt", [low, high])])
        low = Op("where", [further, Op("add", [middle, narrow(1)]), low])
        high = Op("where", [before, high, middle])
    return low


def _searched(
    ctx: LoweringContext, boundaries: TensorExpr, x: TensorExpr, right: bool, common: torch.dtype
) -> Lowered:
    """For each element of `x` its place in the row of `boundaries` that belongs to it."""
    dtype = from_torch_dtype(common)
    unknown = not boundaries.dims or not boundaries.shape[-1].is_constant
    if unknown or dtype.kind == "complex" or dtype is DType.bool_:
        return None
    size = boundaries.shape[-1].as_int()
    if size.bit_length() > _MOST_HALVINGS:
        return None
    sequence = readable(ctx, boundaries)
    dims = dimensions(x.shape)
    places = [dim.expr for dim in dims]
    row = places[: len(boundaries.dims) - 1]
    value = cast(x.at(places), dtype)
    return ctx.pointwise(dims, _first_behind(sequence, row, value, size, right=right))


def _common(ctx: LoweringContext, boundaries: int, x: int) -> torch.dtype:
    """The type in which arguments at these positions are compared."""
    return torch.result_type(ctx.argument(boundaries), ctx.argument(x))


def _is_right(right: bool, side: str | None) -> bool | None:
    """Which side equal elements are on; None for what eager refuses."""
    if side is None:
        return right
    if side not in ("left", "right") or (right and side == "left"):
        return None
    return side == "right"


@lowers("searchsorted.Tensor")
def searchsorted(
    ctx: LoweringContext,
    boundaries: TensorExpr,
    x: TensorExpr,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: TensorExpr | None,
) -> Lowered:
    chosen = _is_right(right, side)
    if chosen is None or sorter is not None:  # eager looks through all of a sorter for errors
        return None
    return _searched(ctx, boundaries, x, chosen, _common(ctx, 0, 1))


@lowers("searchsorted.Scalar")
def searchsorted_number(
    ctx: LoweringContext,
    boundaries: TensorExpr,
    x: Any,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: TensorExpr | None,
) -> Lowered:
    chosen = _is_right(right, side)
    if chosen is None or sorter is not None or isinstance(x, NumberExpr):
        return None
    common = _common(ctx, 0, 1)
    return _searched(ctx, boundaries, _number(x, common), chosen, common)


@lowers("bucketize.Tensor")
def bucketize(
    ctx: LoweringContext, x: TensorExpr, boundaries: TensorExpr, out_int32: bool, right: bool
) -> Lowered:
    return _searched(ctx, boundaries, x, right, _common(ctx, 1, 0))


@lowers("bucketize.Scalar")
def bucketize_number(
    ctx: LoweringContext, x: Any, boundaries: TensorExpr, out_int32: bool, right: bool
) -> Lowered:
    if isinstance(x, NumberExpr):
        return None
    common = _common(ctx, 1, 0)
    return _searched(ctx, boundaries, _number(x, common), right, common)


def _number(x: Any, common: torch.dtype) -> TensorExpr:
    return TensorExpr((), constant(x, from_torch_dtype(common)))
