"""Reductions in C++: what they begin with, how they gather values, and how parts are joined."""

from __future__ import annotations

import math

from plait_cpp_codegen.kernels.operations import literal
from plait_cpp_codegen.kernels.types import REGISTER
from plait_ir_lowering import DType, Op, ReductionKind, Value
from plait_scheduler import Reduce

POSITIONS = {ReductionKind.ARGMAX: "true", ReductionKind.ARGMIN: "false"}
"""Reductions that give a place, and whether it is that of the largest."""


def accumulator(reduce: Reduce, lanes: int | None = None) -> str:
    """The C++ type of what a reduction gathers in; of `L` lanes if no other number is given."""
    count = "L" if lanes is None else str(lanes)
    kind = REGISTER[reduce.value.dtype]
    if reduce.kind in POSITIONS:
        return f"Position<{kind}, {count}, {POSITIONS[reduce.kind]}>"
    return f"vec<{kind}, {count}>"


def start(reduce: Reduce, lanes: str) -> str:
    """What an accumulator begins with."""
    dtype = reduce.value.dtype
    kind = REGISTER[dtype]
    match reduce.kind:
        case ReductionKind.ARGMAX | ReductionKind.ARGMIN:
            least = _extreme(dtype, largest=reduce.kind is ReductionKind.ARGMIN)
            return f"{{splat<{kind}, {lanes}>({least})}}"
        case ReductionKind.SUM | ReductionKind.ANY:
            start = literal(0, dtype)
        case ReductionKind.PROD | ReductionKind.ALL:
            start = literal(1, dtype)
        case ReductionKind.MAX:
            start = _extreme(dtype, largest=False)
        case ReductionKind.MIN:
            start = _extreme(dtype, largest=True)
    return f"splat<{kind}, {lanes}>({start})"


def _extreme(dtype: DType, *, largest: bool) -> str:
    if dtype is DType.bool_:
        return "-1" if largest else "0"
    if dtype.is_float:
        return literal(math.inf if largest else -math.inf, dtype)
    bits = dtype.itemsize * 8
    if not dtype.is_signed:
        return literal(2**bits - 1 if largest else 0, dtype)
    return literal(2 ** (bits - 1) - 1 if largest else -(2 ** (bits - 1)), dtype)


def join(reduce: Reduce, a: str, b: str, lanes: str) -> str:
    """Two partial results as one."""
    kind = REGISTER[reduce.value.dtype]
    is_bool = reduce.value.dtype is DType.bool_
    match reduce.kind:
        case ReductionKind.SUM:
            return f"({a} | {b})" if is_bool else f"({a} + {b})"
        case ReductionKind.PROD:
            return f"({a} & {b})" if is_bool else f"({a} * {b})"
        case ReductionKind.ANY:
            return f"({a} | {b})"
        case ReductionKind.ALL:
            return f"({a} & {b})"
        case ReductionKind.MAX:
            return f"({a} | {b})" if is_bool else f"maximum<{lanes}, {kind}>({a}, {b})"
    return f"({a} & {b})" if is_bool else f"minimum<{lanes}, {kind}>({a}, {b})"


def summed_product(reduce: Reduce) -> tuple[Value, Value] | None:
    """The factors of what a reduction sums up, if a product is and of floats."""
    if reduce.kind is not ReductionKind.SUM or reduce.value.dtype not in (DType.f32, DType.f64):
        return None
    match reduce.value:
        case Op("mul", (first, second)):
            return first, second
        case Op("square", (first,)):
            return first, first
    return None


def accumulate(reduce: Reduce, value: str, place: str, along_rows: bool) -> str:
    """The statement that adds a value, which stands at a place of the inner domain; lanes are at
    places next to each other where they go along rows."""
    name = f"acc_{reduce.name}"
    if reduce.kind in POSITIONS:
        places = f"splat<int64_t, L>({place})" + (" + iota<L, int64_t>()" if along_rows else "")
        return f"{name}.take({value}, {places});"
    # Whether the new value is NaN is known before what was gathered is.
    return f"{name} = {join(reduce, value, name, 'L')};"


def result(reduce: Reduce) -> str:
    """What an accumulator holds at the end."""
    if reduce.kind in POSITIONS:
        return f"acc_{reduce.name}.place"
    return f"acc_{reduce.name}"
