"""Numbers that torch's generators of GPUs draw; `plait_utils.philox` says which, and
`plait_utils.philox_numbers`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from plait_ir_lowering.context import LoweringContext, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import ZERO, IndexExpr, Var, as_index
from plait_ir_lowering.ir.values import Const, IndexValue, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.elementwise import elementwise
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_ir_lowering.torch_types import to_torch_dtype
from plait_utils.philox import STEP, UNROLL, place
from plait_utils.philox_numbers import LARGEST_DIVISOR, LONG, TURN


def _long(number: int) -> Value:
    return Const(number, DType.i64)


def _of(name: str, *args: Value) -> Value:
    return Op(name, args)


class _Drawn(NamedTuple):
    """What draws the elements of a result."""

    dims: tuple[Var, ...]
    number: IndexExpr
    """Which of the numbers that its thread draws at once an element gets."""
    word: Callable[[IndexExpr], Value]
    """Of the four of its counter."""


def _drawn(
    ctx: LoweringContext, state: TensorExpr, start: Any, threads: int, vector: int, unroll: int
) -> _Drawn:
    dims = dimensions(ctx.result.shape)
    position = ZERO
    for dim in dims:
        position = position * dim.extent + dim.expr
    at = place(position, threads, vector, unroll)
    seed, offset = (state.at([as_index(number)]) for number in (0, 1))
    begun = _of("rshift", offset, _long(STEP.bit_length() - 1))
    counter = _of("add", begun, IndexValue(at.round + as_index(start) // STEP))

    def word(lane: IndexExpr) -> Value:
        return _of("philox", seed, counter, IndexValue(at.subsequence), IndexValue(lane))

    return _Drawn(dims, at.number, word)


@lowers("plait_philox::uniform")
def uniform(
    ctx: LoweringContext,
    state: TensorExpr,
    size: Any,
    start: Any,
    threads: int,
    vector: int,
    dtype: Any,
) -> Lowered:
    target = ctx.dtype_of(ctx.result)
    drawn = _drawn(ctx, state, start, threads, vector, UNROLL[to_torch_dtype(target)])
    if target is DType.f64:
        return TensorExpr(drawn.dims, _double(drawn.word, drawn.number * 2))
    return TensorExpr(drawn.dims, _above_zero(drawn.word(drawn.number), target, 32))


def _double(word: Callable[[IndexExpr], Value], lane: IndexExpr) -> Value:
    """Of 53 bits of two words."""
    low, high = word(lane), word(lane + 1)
    bits = _of("bitwise_xor", low, _of("lshift", high, _long(21)))
    return _above_zero(bits, DType.f64, 53)


def _above_zero(bits: Value, dtype: DType, count: int) -> Value:
    """The middle of a part of [0, 1], which has 2 to the `count` of them; that of the last may be
    rounded to 1."""
    scaled = _of("mul", Op("to", [bits], dtype), Const(2.0**-count, dtype))
    return _of("add", scaled, Const(2.0 ** -(count + 1), dtype))


@lowers("plait_philox::normal")
def normal(
    ctx: LoweringContext, state: TensorExpr, size: Any, start: Any, threads: int, dtype: Any
) -> Lowered:
    target = ctx.dtype_of(ctx.result)
    drawn = _drawn(ctx, state, start, threads, 1, UNROLL[to_torch_dtype(target)])
    if target is DType.f64:
        u = _double(drawn.word, ZERO)
        v = _of("mul", _double(drawn.word, ZERO + 2), Const(2.0, target))
    else:
        pair = drawn.number // 2 * 2
        u = _above_zero(drawn.word(pair), target, 32)
        turned = Op("to", [drawn.word(pair + 1)], target)
        scale, half = (Const(TURN * part, target) for part in (2.0**-32, 2.0**-33))
        v = _of("fma", turned, scale, half)
    is_first = _of("eq", IndexValue(drawn.number % 2), _long(0))
    pair_of = _of("box_muller_sin", u, v), _of("box_muller_cos", u, v)
    return TensorExpr(drawn.dims, _of("where", is_first, *pair_of))


@lowers("plait_philox::integers")
def integers(
    ctx: LoweringContext,
    state: TensorExpr,
    size: Any,
    start: Any,
    threads: int,
    words: int,
    most: int,
    base: int,
) -> Lowered:
    drawn = _drawn(ctx, state, start, threads, 1, 4 // words)
    bits = drawn.word(drawn.number * words)
    if words == 2:
        high = _of("lshift", bits, _long(32))
        bits = _of("bitwise_or", high, drawn.word(drawn.number * 2 + 1))
    found = _remainder(bits, most, words)
    return None if found is None else TensorExpr(drawn.dims, _of("add", found, _long(base)))


def _remainder(bits: Value, most: int, words: int) -> Value | None:
    """As `plait_utils.philox_numbers.remainder`; of one word the sign is no part."""
    divisor = most + 1
    if not divisor & most:
        return _of("bitwise_and", bits, _long(most))
    if divisor > LARGEST_DIVISOR:
        return None
    if words == 1:
        return _of("fmod", bits, _long(divisor))
    half = _of("bitwise_and", _of("rshift", bits, _long(1)), _long(LONG))
    times = _of("lshift", _of("truncdiv", half, _long(divisor)), _long(1))
    left = _of("sub", bits, _of("mul", times, _long(divisor)))
    is_more = _of("ge", left, _long(divisor))
    return _of("where", is_more, _of("sub", left, _long(divisor)), left)


@lowers("plait_philox::fma")
def fma(ctx: LoweringContext, x: TensorExpr, y: Any, z: Any) -> Lowered:
    return elementwise(
        ctx, [x], lambda a: _of("fma", a, constant(y, a.dtype), constant(z, a.dtype))
    )


@lowers("plait_philox::log")
def approximate_log(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return elementwise(ctx, [x], lambda a: _of("approximate_log", a))


@lowers("plait_philox::exp")
def approximate_exp(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return elementwise(ctx, [x], lambda a: _of("approximate_exp", a))
