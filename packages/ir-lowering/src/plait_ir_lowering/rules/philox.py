"""Numbers that torch's generators of GPUs draw; `plait_utils.philox` says which."""

from __future__ import annotations

from typing import Any

from plait_ir_lowering.context import LoweringContext
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import ZERO, IndexExpr, as_index
from plait_ir_lowering.ir.values import Const, IndexValue, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_ir_lowering.torch_types import to_torch_dtype
from plait_utils.philox import STEP, UNROLL, place


def _long(number: int) -> Value:
    return Const(number, DType.i64)


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
    dims = dimensions(ctx.result.shape)
    position = ZERO
    for dim in dims:
        position = position * dim.extent + dim.expr
    target = ctx.dtype_of(ctx.result)
    at = place(position, threads, vector, UNROLL[to_torch_dtype(target)])
    seed, offset = (state.at([as_index(number)]) for number in (0, 1))
    begun = Op("rshift", [offset, _long(STEP.bit_length() - 1)])
    counter = Op("add", [begun, IndexValue(at.round + as_index(start) // STEP)])

    def word(lane: IndexExpr) -> Value:
        return Op("philox", [seed, counter, IndexValue(at.subsequence), IndexValue(lane)])

    if target is DType.f64:
        low, high = (word(at.number * 2 + number) for number in (0, 1))
        bits = Op("bitwise_xor", [low, Op("lshift", [high, _long(21)])])
        return TensorExpr(dims, _above_zero(bits, target, 53))
    return TensorExpr(dims, _above_zero(word(at.number), target, 32))


def _above_zero(bits: Value, dtype: DType, count: int) -> Value:
    """The middle of a part of [0, 1], which has 2 to the `count` of them; that of the last may be
    rounded to 1."""
    scaled = Op("mul", [Op("to", [bits], dtype), Const(2.0**-count, dtype)])
    return Op("add", [scaled, Const(2.0 ** -(count + 1), dtype)])
