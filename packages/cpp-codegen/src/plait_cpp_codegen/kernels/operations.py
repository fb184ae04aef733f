"""Operations of the loop IR as C++ on vectors of L lanes."""

from __future__ import annotations

import math
from collections.abc import Callable

from plait_cpp_codegen.kernels.plan import is_number
from plait_cpp_codegen.kernels.types import MEMORY, REGISTER
from plait_ir_lowering import Const, DType, Op, Scalar, Value

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_BITS = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_LOGICAL = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
DIVISIONS = frozenset({"floordiv", "rem", "truncdiv", "fmod"})
"""Operations that may divide an integer by 0."""
_VECTOR_CALLS = frozenset(
    {
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan"),
        *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid"),
        *("erf", "erfc", "lgamma", "floor", "ceil", "trunc", "round"),
        *("atan2", "copysign", "hypot", "philox"),
    }
)


def operation(
    name: str, args: list[str], values: tuple[Value, ...], source: DType, dtype: DType
) -> str:
    """C++ of an operation on vectors: of `values`, by name, computed as `source`."""
    register = REGISTER[dtype]
    match name:
        case "to" if is_number(values[0]) and source is DType.f64 and dtype is DType.f32:
            return f"splat<float, L>((float)({args[0]})[0])"
        case "to":
            return convert(args[0], source, dtype)
        case "bitcast":
            return f"bitcast<{register}, L>({args[0]})"
        case "real":
            return f"{args[0]}.re"
        case "imag":
            return f"{args[0]}.im"
        case "complex":
            return f"vec<{register}, L>{{{args[0]}, {args[1]}}}"
        case "where":
            return f"select<{register}, L>({args[0]}, {args[1]}, {args[2]})"
        case "add" | "mul" if source is DType.bool_:
            return f"{args[0]} {'|' if name == 'add' else '&'} {args[1]}"
        case "logical_not":
            return f"~{args[0]}"
        case "bitwise_not":
            return f"~{args[0]}"
        case "maximum" | "minimum" if source is DType.bool_:
            return f"{args[0]} {'|' if name == 'maximum' else '&'} {args[1]}"
        case "maximum" | "minimum":
            limit = values[1]
            if isinstance(limit, Const) and limit.value == limit.value:
                name = "at_least" if name == "maximum" else "at_most"
            return f"{name}<L, {register}>({args[0]}, {args[1]})"
    if name in COMPARISONS and source is DType.bool_:
        return f"as_mask<L>({args[1]} {COMPARISONS[name]} {args[0]})"  # true is -1
    if name in COMPARISONS:
        return f"as_mask<L>({args[0]} {COMPARISONS[name]} {args[1]})"
    if name == "mul" and source is DType.i64 and all(map(_is_word, values)):
        return f"product_of_words<L>({args[0]}, {args[1]})"
    infix = _INFIX.get(name) or _BITS.get(name) or _LOGICAL.get(name)
    if infix is not None:
        return f"{args[0]} {infix} {args[1]}"
    return _function(name, args, REGISTER[source], source)


def argument_of_erf(value: Value) -> Value | None:
    """What y is where a value is 1 + erf y of float32, for which there is a function; else None."""
    if not (isinstance(value, Op) and value.name == "add" and value.dtype is DType.f32):
        return None
    for one, other in (value.args, value.args[::-1]):
        if isinstance(one, Const) and one.value == 1 and isinstance(other, Op):
            return other.args[0] if other.name == "erf" else None
    return None


def _is_word(value: Value) -> bool:
    """Whether an integer of 64 bits is at least 0 and has no more than 32."""
    if isinstance(value, Const):
        return 0 <= value.value < 1 << 32
    masked = isinstance(value, Op) and value.name == "bitwise_and"
    return masked and any(isinstance(each, Const) and _is_word(each) for each in value.operands)


def _function(name: str, args: list[str], register: str, source: DType) -> str:
    first = args[0]
    zero, one = f"splat<{register}, L>(0)", f"splat<{register}, L>(1)"
    table: dict[str, Callable[[], str]] = {
        "neg": lambda: f"-{first}",
        "abs": lambda: _absolute(first, register, source),
        "square": lambda: f"{first} * {first}",
        "fma": lambda: f"madd<L>({first}, {args[1]}, {args[2]})",
        "reciprocal": lambda: f"{one} / {first}",
        "rsqrt": lambda: f"{one} / v_sqrt<L, {register}>({first})",
        "sign": lambda: (
            f"select<{register}, L>(as_mask<L>({first} > {zero}), {one}, "
            f"select<{register}, L>(as_mask<L>({first} < {zero}), {zero} - {one}, {zero}))"
        ),
        "isnan": lambda: f"as_mask<L>({first} != {first})",
        "isinf": lambda: f"as_mask<L>(({first} == {first}) & (({first} - {first}) != {zero}))",
        "signbit": lambda: f"as_mask<L>(v_copysign<L, {register}>({one}, {first}) < {zero})",
        "floordiv": lambda: f"v_floordiv<L, {register}>({first}, {args[1]}, arguments.error)",
        "rem": lambda: f"v_rem<L, {register}>({first}, {args[1]}, arguments.error)",
        "truncdiv": lambda: (
            f"v_trunc<L, {register}>({first} / {args[1]})"
            if source.is_float
            else f"v_truncdiv<L, {register}>({first}, {args[1]}, arguments.error)"
        ),
        "fmod": lambda: (
            f"v_fmod<L, {register}>({first}, {args[1]})"
            if source.is_float
            else f"v_modulus<L, {register}>({first}, {args[1]}, arguments.error)"
        ),
        "pow": lambda: (
            f"v_pow<L, {register}>({first}, {args[1]})"
            if source.is_float
            else f"v_power<L, {register}>({first}, {args[1]})"
        ),
        "box_muller_sin": lambda: _box_muller("sin", first, args[1], register),
        "box_muller_cos": lambda: _box_muller("cos", first, args[1], register),
        "approximate_log": lambda: f"v_log<L, {register}>({first})",
        "approximate_exp": lambda: f"v_exp<L, {register}>({first})",
        "lshift": lambda: f"{first} << {args[1]}",
        "rshift": lambda: f"{first} >> {args[1]}",
    }
    if name in table:
        return table[name]()
    if name in _VECTOR_CALLS:
        return f"v_{name}<L, {register}>({', '.join(args)})"
    raise TypeError(f"there is no C++ for operation {name!r}")


def _box_muller(turned: str, first: str, second: str, register: str) -> str:
    """Of angles as float by radians, as double by half-turns."""
    half = math.pi if register == "double" else 1
    angle = f"splat<{register}, L>({half!r}) * {second}"
    radius = f"v_sqrt<L, {register}>(splat<{register}, L>(-2) * v_log<L, {register}>({first}))"
    return f"{radius} * v_{turned}<L, {register}>({angle})"


def _absolute(first: str, register: str, source: DType) -> str:
    if register in ("float", "double"):
        return f"magnitude<L>({first})"
    if not source.is_signed:
        return first
    zero = f"splat<{register}, L>(0)"
    negated = f"{zero} - {first}"
    return f"select<{register}, L>(as_mask<L>({first} < {zero}), {negated}, {first})"


def convert(text: str, source: DType, target: DType) -> str:
    """C++ that casts lanes as ATen's copy does."""
    start, end = REGISTER[source], REGISTER[target]
    if source is DType.bool_:
        bits = f"({text} & 1)"
        return (
            bits
            if end == "int32_t" and target is not DType.bool_
            else (text if target is DType.bool_ else f"convert<{end}, int32_t, L>{bits}")
        )
    if target is DType.bool_:
        return f"as_mask<L>({text} != splat<{start}, L>(0))"
    converted = text if start == end else f"convert<{end}, {start}, L>({text})"
    if target is DType.bf16:
        return f"round_bf16<L>({converted})"
    if target is DType.f16:
        return f"round_f16<L>({converted})"
    if target in (DType.f8e4m3fn, DType.f8e5m2):
        return f"round_f8<{MEMORY[target]}, L>({converted})"
    return converted


def literal(number: Scalar, dtype: DType) -> str:
    """A constant as a C++ literal of its register type."""
    if dtype is DType.bool_:
        return "-1" if number else "0"
    if not dtype.is_float:
        return f"({REGISTER[dtype]}){_integer(int(number), dtype)}"
    suffix = "" if dtype is DType.f64 else "f"
    value = float(number)
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    if suffix and abs(value) > 3.4028235677973366e38:
        return f"{'-' if value < 0 else ''}__builtin_inff()"
    return f"{value!r}{suffix}"


def _integer(number: int, dtype: DType) -> str:
    if number == -(2**63):
        return "(-9223372036854775807LL - 1)"
    return f"{number}{'ULL' if dtype is DType.u64 else 'LL'}"
