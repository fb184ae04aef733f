"""Random numbers of a counter-based generator; `plait_utils.counters` says which."""

from __future__ import annotations

import math
from typing import Any

from plait_ir_lowering.context import LoweringContext, cast
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import ZERO, IndexExpr
from plait_ir_lowering.ir.values import Const, IndexValue, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_ir_lowering.torch_types import to_torch_dtype
from plait_utils.counters import MULTIPLIER, PRECISION, ROUNDS, WEYL, WORD

_EXACT = 53
"""Bits of a float64's fraction."""


def _long(number: int) -> Value:
    return Const(number, DType.i64)


def _word(value: Value) -> Value:
    return Op("bitwise_and", [value, _long(WORD)])


def _high(value: Value) -> Value:
    """Its high 32 bits; those above are what they are."""
    return Op("rshift", [value, _long(32)])


def _either(*values: Value) -> Value:
    found, *rest = values
    for value in rest:
        found = Op("bitwise_xor", [found, value])
    return found


def philox(key: Value, position: IndexExpr) -> Value:
    """64 bits. What a round takes of its words are their low 32 bits: above may be anything."""
    counter = IndexValue(position)
    low: Value = counter
    high = _either(_high(counter), _high(key))
    for turn in range(ROUNDS):
        product = Op("mul", [_word(low), _long(MULTIPLIER)])
        of_round = Op("add", [key, _long(turn * WEYL)]) if turn else key
        low, high = _either(_high(product), of_round, high), product
    return Op("bitwise_or", [_word(low), Op("lshift", [high, _long(32)])])


def _drawn(ctx: LoweringContext, key: TensorExpr, step: int = 1, first: int = 0) -> Value:
    """The bits at each position, row by row; of every `step`-th position from the `first` on."""
    position = ZERO
    for dim in dimensions(ctx.result.shape):
        position = position * dim.extent + dim.expr
    return philox(key.at([ZERO] * len(key.dims)), position * step + first)


def _number(bits: Value, count: int, wide: DType, scale: float, more: int = 0) -> Value:
    """The low bits, and something added to them, as a float, scaled."""
    taken: Value = Op("bitwise_and", [bits, _long((1 << count) - 1)])
    if more:
        taken = Op("add", [taken, _long(more)])
    return Op("mul", [Op("to", [taken], wide), Const(scale, wide)])


@lowers("plait_counters::bits")
def bits(ctx: LoweringContext, key: TensorExpr, size: Any) -> Lowered:
    return TensorExpr(dimensions(ctx.result.shape), _drawn(ctx, key))


@lowers("plait_counters::uniform")
def uniform(ctx: LoweringContext, key: TensorExpr, size: Any, dtype: Any) -> Lowered:
    target = ctx.dtype_of(ctx.result)
    count = PRECISION[to_torch_dtype(target)]
    wide = DType.f64 if target is DType.f64 else DType.f32
    value = _number(_drawn(ctx, key), count, wide, 2.0**-count)
    return TensorExpr(dimensions(ctx.result.shape), cast(value, target))


@lowers("plait_counters::normal")
def normal(ctx: LoweringContext, key: TensorExpr, size: Any, dtype: Any) -> Lowered:
    target = ctx.dtype_of(ctx.result)
    if target is DType.f64:
        wide, count = DType.f64, _EXACT
        first, second = _drawn(ctx, key, 2), _drawn(ctx, key, 2, 1)
    else:
        wide, count = DType.f32, 32
        first = _drawn(ctx, key)
        second = _high(first)
    scale = 2.0**-count
    logarithm = Op("log", [_number(first, count, wide, scale, 1)])
    radius = Op("sqrt", [Op("mul", [logarithm, Const(-2.0, wide)])])
    turned = Op("cos", [_number(second, count, wide, 2 * math.pi * scale)])
    return TensorExpr(dimensions(ctx.result.shape), cast(Op("mul", [radius, turned]), target))
