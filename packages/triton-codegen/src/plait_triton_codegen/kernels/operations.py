"""The operations of the loop IR as Triton expressions, by kind of operand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from plait_ir_lowering import OPS, DType
from plait_triton_codegen.errors import UnsupportedKernelError

TRITON_DTYPES: dict[DType, str] = {
    DType.bool_: "tl.int1",
    DType.u8: "tl.uint8",
    DType.u16: "tl.uint16",
    DType.u32: "tl.uint32",
    DType.u64: "tl.uint64",
    DType.i8: "tl.int8",
    DType.i16: "tl.int16",
    DType.i32: "tl.int32",
    DType.i64: "tl.int64",
    DType.f16: "tl.float16",
    DType.bf16: "tl.bfloat16",
    DType.f32: "tl.float32",
    DType.f64: "tl.float64",
    DType.f8e4m3fn: "tl.float8e4nv",
    DType.f8e5m2: "tl.float8e5",
}
"""How Triton names each element type; complex numbers have none."""

POINTEES: dict[DType, str] = {
    DType.bool_: "i1",
    DType.u8: "u8",
    DType.u16: "u16",
    DType.u32: "u32",
    DType.u64: "u64",
    DType.i8: "i8",
    DType.i16: "i16",
    DType.i32: "i32",
    DType.i64: "i64",
    DType.f16: "fp16",
    DType.bf16: "bf16",
    DType.f32: "fp32",
    DType.f64: "fp64",
    DType.f8e4m3fn: "fp8e4nv",
    DType.f8e5m2: "fp8e5",
}
"""How Triton signatures name each element type."""


_BESIDE_AN_OPERATOR = re.compile(r"(?<!\()(?<!, )\{\d\}|\{\d\}(?![,)])")
"""An operand in a template that is not all of an argument."""


class Kind(Enum):
    """What Triton distinguishes operations by."""

    F32 = "f32"
    F64 = "f64"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class Expression:
    """`{0}`, `{1}`... stand for the operands."""

    template: str

    @property
    def is_call(self) -> bool:
        """Whether the operands are arguments of functions, so that they need no brackets."""
        return _BESIDE_AN_OPERATOR.search(self.template) is None

    @property
    def takes_literals(self) -> bool:
        """Whether Triton gives a Python number beside an operand that operand's type."""
        return self.template.startswith(("{0} ", "tl.where"))


FLOATS = (Kind.F32, Kind.F64)
INTEGERS = (Kind.SIGNED, Kind.UNSIGNED)
ANY = (*FLOATS, *INTEGERS, Kind.BOOL)
NUMBERS = (*FLOATS, *INTEGERS)

_NAN = "propagate_nan=tl.PropagateNan.ALL"
_INT = ".to(tl.int32)"

_ROWS: tuple[tuple[str, tuple[Kind, ...], str], ...] = (
    ("add", NUMBERS, "{0} + {1}"),
    ("add", (Kind.BOOL,), "{0} | {1}"),
    ("sub", NUMBERS, "{0} - {1}"),
    ("sub", (Kind.BOOL,), "{0} ^ {1}"),
    ("mul", NUMBERS, "{0} * {1}"),
    ("mul", (Kind.BOOL,), "{0} & {1}"),
    ("div", (Kind.F32,), "tl.div_rn({0}, {1})"),
    ("div", (Kind.F64,), "{0} / {1}"),
    ("floordiv", FLOATS, "device.floor_divide({0}, {1})"),
    ("floordiv", (Kind.SIGNED,), "device.floor_divide_int({0}, {1})"),
    ("floordiv", (Kind.UNSIGNED,), "{0} // {1}"),
    ("truncdiv", FLOATS, "device.trunc({0} / {1})"),
    ("truncdiv", INTEGERS, "{0} // {1}"),
    ("rem", FLOATS, "device.remainder({0}, {1})"),
    ("rem", (Kind.SIGNED,), "device.remainder_int({0}, {1})"),
    ("rem", (Kind.UNSIGNED,), "{0} % {1}"),
    ("fmod", FLOATS, "device.fmod({0}, {1})"),
    ("fmod", INTEGERS, "{0} % {1}"),
    ("neg", FLOATS, "-{0}"),
    ("neg", (Kind.SIGNED,), "-{0}"),
    ("neg", (Kind.UNSIGNED,), "{0} * 0 - {0}"),
    ("abs", (*FLOATS, Kind.SIGNED), "tl.abs({0})"),
    ("abs", (Kind.UNSIGNED, Kind.BOOL), "{0}"),
    ("sign", NUMBERS, "device.sign({0})"),
    ("sign", (Kind.BOOL,), "{0}"),
    ("square", NUMBERS, "{0} * {0}"),
    ("square", (Kind.BOOL,), "{0}"),
    ("maximum", FLOATS, f"tl.maximum({{0}}, {{1}}, {_NAN})"),
    ("maximum", INTEGERS, "tl.maximum({0}, {1})"),
    ("maximum", (Kind.BOOL,), "{0} | {1}"),
    ("minimum", FLOATS, f"tl.minimum({{0}}, {{1}}, {_NAN})"),
    ("minimum", INTEGERS, "tl.minimum({0}, {1})"),
    ("minimum", (Kind.BOOL,), "{0} & {1}"),
    ("fma", FLOATS, "tl.fma({0}, {1}, {2})"),
    ("exp", FLOATS, "tl.exp({0})"),
    ("exp2", FLOATS, "tl.exp2({0})"),
    ("expm1", FLOATS, "device.expm1({0})"),
    ("log", FLOATS, "tl.log({0})"),
    ("log2", FLOATS, "tl.log2({0})"),
    ("log10", FLOATS, "device.log10({0})"),
    ("log1p", FLOATS, "device.log1p({0})"),
    ("sqrt", (Kind.F32,), "tl.sqrt_rn({0})"),
    ("sqrt", (Kind.F64,), "tl.sqrt({0})"),
    ("rsqrt", FLOATS, "tl.rsqrt({0})"),
    ("reciprocal", (Kind.F32,), "tl.div_rn(1.0, {0})"),
    ("reciprocal", (Kind.F64,), "1.0 / {0}"),
    ("pow", FLOATS, "device.power({0}, {1})"),
    ("pow", INTEGERS, "device.power_int({0}, {1})"),
    ("sin", FLOATS, "tl.sin({0})"),
    ("cos", FLOATS, "tl.cos({0})"),
    ("tan", FLOATS, "device.tan({0})"),
    ("asin", FLOATS, "device.asin({0})"),
    ("acos", FLOATS, "device.acos({0})"),
    ("atan", FLOATS, "device.atan({0})"),
    ("atan2", FLOATS, "device.atan2({0}, {1})"),
    ("sinh", FLOATS, "device.sinh({0})"),
    ("cosh", FLOATS, "device.cosh({0})"),
    ("tanh", FLOATS, "device.tanh({0})"),
    ("asinh", FLOATS, "device.asinh({0})"),
    ("acosh", FLOATS, "device.acosh({0})"),
    ("atanh", FLOATS, "device.atanh({0})"),
    ("sigmoid", FLOATS, "device.sigmoid({0})"),
    ("erf", FLOATS, "tl.erf({0})"),
    ("erfc", FLOATS, "device.erfc({0})"),
    ("lgamma", FLOATS, "device.lgamma({0})"),
    ("floor", FLOATS, "tl.floor({0})"),
    ("ceil", FLOATS, "tl.ceil({0})"),
    ("trunc", FLOATS, "device.trunc({0})"),
    ("round", FLOATS, "device.round_even({0})"),
    ("copysign", FLOATS, "device.copysign({0}, {1})"),
    ("hypot", FLOATS, "device.hypot({0}, {1})"),
    ("eq", ANY, "{0} == {1}"),
    ("ne", ANY, "{0} != {1}"),
    ("lt", NUMBERS, "{0} < {1}"),
    ("le", NUMBERS, "{0} <= {1}"),
    ("gt", NUMBERS, "{0} > {1}"),
    ("ge", NUMBERS, "{0} >= {1}"),
    # a set i1 is -1 where Triton compares signed numbers
    ("lt", (Kind.BOOL,), f"{{0}}{_INT} < {{1}}{_INT}"),
    ("le", (Kind.BOOL,), f"{{0}}{_INT} <= {{1}}{_INT}"),
    ("gt", (Kind.BOOL,), f"{{0}}{_INT} > {{1}}{_INT}"),
    ("ge", (Kind.BOOL,), f"{{0}}{_INT} >= {{1}}{_INT}"),
    ("isnan", FLOATS, "{0} != {0}"),
    ("isinf", FLOATS, 'tl.abs({0}) == float("inf")'),
    ("signbit", FLOATS, "device.signbit({0})"),
    ("logical_and", (Kind.BOOL,), "{0} & {1}"),
    ("logical_or", (Kind.BOOL,), "{0} | {1}"),
    ("logical_xor", (Kind.BOOL,), "{0} ^ {1}"),
    ("logical_not", (Kind.BOOL,), "{0} == 0"),
    ("bitwise_and", (*INTEGERS, Kind.BOOL), "{0} & {1}"),
    ("bitwise_or", (*INTEGERS, Kind.BOOL), "{0} | {1}"),
    ("bitwise_xor", (*INTEGERS, Kind.BOOL), "{0} ^ {1}"),
    ("bitwise_not", (Kind.SIGNED,), "~{0}"),
    ("bitwise_not", (Kind.UNSIGNED,), "({0} * 0 - {0}) - 1"),
    ("bitwise_not", (Kind.BOOL,), "{0} == 0"),
    ("lshift", INTEGERS, "device.shift_left({0}, {1})"),
    ("rshift", INTEGERS, "device.shift_right({0}, {1})"),
    ("philox", (Kind.SIGNED,), "device.philox({0}, {1}, {2}, {3})"),
    ("box_muller_sin", FLOATS, "device.box_muller_sin({0}, {1})"),
    ("box_muller_cos", FLOATS, "device.box_muller_cos({0}, {1})"),
    ("approximate_log", FLOATS, "device.approximate_log({0})"),
    ("approximate_exp", FLOATS, "device.approximate_exp({0})"),
    ("where", ANY, "tl.where({0}, {1}, {2})"),
)

_FAST: dict[str, str] = {
    "div": "{0} / {1}",
    "sqrt": "tl.sqrt({0})",
    "reciprocal": "1.0 / {0}",
    "exp": "device.fast_exp({0})",
    "sigmoid": "device.fast_sigmoid({0})",
    "tanh": "device.fast_tanh({0})",
}
"""Forms for f32 that are off by a few ulps, which rounding to 16 bits hides."""
INEXACT = frozenset((*_FAST, "erf"))
"""The operations that have such a form."""

ROW_DIVISION = Expression("{0} * (1.0 / {1})")
"""Division by what is the same along a row, where an ulp does not matter."""
ROW_SHARE = Expression("device.share({0}, {1})")
"""Division of exponentials by their sum (`plait_scheduler.shares`)."""
ONE_PLUS_ERF = Expression("device.one_plus_erf({0})")
"""1 + erf(x), off by a few ulps of 1."""


def _table() -> dict[tuple[str, Kind], Expression]:
    table: dict[tuple[str, Kind], Expression] = {}
    for name, kinds, template in _ROWS:
        if name not in OPS:
            raise ValueError(f"there is no operation {name!r}")
        for kind in kinds:
            if (name, kind) in table:
                raise ValueError(f"operation {name!r} on {kind.value} is declared twice")
            table[name, kind] = Expression(template)
    return table


OPERATIONS: dict[tuple[str, Kind], Expression] = _table()
"""Casts aside, every operation for every kind of operand that it takes."""


def kind_of(dtype: DType) -> Kind:
    """The kind of a type's values in registers; narrow floats compute as f32."""
    if dtype is DType.bool_:
        return Kind.BOOL
    if dtype.is_float:
        return Kind.F64 if dtype is DType.f64 else Kind.F32
    if dtype.is_integer:
        return Kind.SIGNED if dtype.is_signed else Kind.UNSIGNED
    raise UnsupportedKernelError(f"Triton has no {dtype} numbers")


def expression_of(name: str, dtype: DType, exact: bool) -> Expression:
    """How `name` on operands of `dtype` is written. Raises UnsupportedKernelError if it cannot."""
    kind = kind_of(dtype)
    if not exact and kind is Kind.F32 and name in _FAST:
        return Expression(_FAST[name])
    found = OPERATIONS.get((name, kind))
    if found is None:
        raise UnsupportedKernelError(f"there is no Triton expression for {name} on {dtype}")
    return found
