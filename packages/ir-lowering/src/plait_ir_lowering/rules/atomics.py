"""Scatters on GPUs, where the points run in any order: what each combines in.

Atomic additions are those of f32, f64, i32 and i64; the larger and the smaller of two are those of
i32 and i64. Other types are combined in a buffer of such a type, and converted back:

    add, of bf16            added up in f32, and rounded once
    add, of i8              added up in i32, whose low bits are the sum
    add, of bool            the larger in i32
    max, of f32             the larger in i32, by keys that are ordered as floats are:
                            bits ^ (bits >> 31 & 0x7fffffff), NaN above all

Products are left to ATen: there is no atomic product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from plait_ir_lowering.context import cast
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.ops import ScatterKind
from plait_ir_lowering.ir.values import Const, Op, Value
from plait_utils import dataclass

Convert: TypeAlias = Callable[[Value], Value]

_ADDED = (DType.f32, DType.f64, DType.i32, DType.i64)
_ORDERED = (DType.i32, DType.i64)
_IN_I32 = (DType.i8, DType.i16, DType.u8)
_KEYS = {DType.f32: DType.i32, DType.f64: DType.i64}


@dataclass(frozen=True, slots=True)
class Atomic:
    """How values of a type are combined: as a kind of another, and how they become such."""

    kind: ScatterKind
    dtype: DType
    enter: Convert
    leave: Convert


def atomic(kind: ScatterKind, dtype: DType) -> Atomic | None:
    """How to combine elements of `dtype` by atomic operations; None where there is no way."""
    if dtype is DType.bool_:
        kind = _OF_BOOLS[kind]
    if kind is ScatterKind.ASSIGN:
        return _plain(kind, dtype, dtype)
    if dtype is DType.bool_ or dtype in _IN_I32:
        return None if kind is ScatterKind.MUL else _plain(kind, dtype, DType.i32)
    if kind is ScatterKind.ADD:
        wide = DType.f32 if dtype.is_reduced_precision else dtype
        return _plain(kind, dtype, wide) if wide in _ADDED else None
    if kind is ScatterKind.MUL:
        return None
    if dtype in _ORDERED:
        return _plain(kind, dtype, dtype)
    wide = DType.f32 if dtype.is_reduced_precision else dtype
    return _by_keys(kind, dtype, wide) if wide in _KEYS else None


_OF_BOOLS = {
    ScatterKind.ASSIGN: ScatterKind.ASSIGN,
    ScatterKind.ADD: ScatterKind.MAX,
    ScatterKind.MUL: ScatterKind.MIN,
    ScatterKind.MAX: ScatterKind.MAX,
    ScatterKind.MIN: ScatterKind.MIN,
}


def _plain(kind: ScatterKind, dtype: DType, wide: DType) -> Atomic:
    return Atomic(kind, wide, lambda value: cast(value, wide), lambda value: cast(value, dtype))


def _by_keys(kind: ScatterKind, dtype: DType, wide: DType) -> Atomic:
    """By integers that are ordered as floats are."""
    key = _KEYS[wide]
    bits = key.itemsize * 8
    magnitude, shift = Const((1 << (bits - 1)) - 1, key), Const(bits - 1, key)
    nan = Const((1 << (bits - 1)) - 1 if kind is ScatterKind.MAX else -(1 << (bits - 1)), key)

    def turned(value: Value) -> Value:
        """The bits of negative numbers in the other order; its own inverse."""
        sign = Op("rshift", [value, shift])
        return Op("bitwise_xor", [value, Op("bitwise_and", [sign, magnitude])])

    def enter(value: Value) -> Value:
        number = cast(value, wide)
        return Op("where", [Op("isnan", [number]), nan, turned(Op("bitcast", [number], key))])

    def leave(value: Value) -> Value:
        return cast(Op("bitcast", [turned(value)], wide), dtype)

    return Atomic(kind, key, enter, leave)
