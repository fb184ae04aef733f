"""NumPy's universal functions on tensors.

Each takes torch, or what stands for it, and its operands, which have the types of the loop that
NumPy chose. A rule of `SCALARS` takes Python numbers as operands too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Rule = Callable[..., Any]


def _is_int(value: Any) -> bool:
    return not (value.dtype.is_floating_point or value.dtype.is_complex)


def _add(t: Any, a: Any, b: Any) -> Any:
    if _is_complex(a):  # torch multiplies by alpha, which is 1 + 0j
        return t.view_as_complex(t.view_as_real(a) + t.view_as_real(b))
    return a + b


def _subtract(t: Any, a: Any, b: Any) -> Any:
    if _is_complex(a):
        return t.view_as_complex(t.view_as_real(a) - t.view_as_real(b))
    return a - b


def _is_complex(value: Any) -> bool:
    return not isinstance(value, bool | int | float) and value.dtype.is_complex


def _divide(t: Any, a: Any, b: Any) -> Any:
    return a / b


def _floor_divide(t: Any, a: Any, b: Any) -> Any:
    if not _is_int(a):
        return t.div(a, b, rounding_mode="floor")
    # by zero NumPy gives 0; the least integer by -1 overflows, which processors trap
    special = (b == 0) | (b == -1) if a.dtype.is_signed else b == 0
    found = t.div(a, t.where(special, 1, b), rounding_mode="floor")
    if a.dtype.is_signed:
        found = t.where(b == -1, -a, found)
    return t.where(b == 0, 0, found)


def _remainder(t: Any, a: Any, b: Any) -> Any:
    if not _is_int(a):
        found = t.remainder(a, b)
        return t.where(found == 0, t.copysign(t.zeros_like(found), b), found)
    special = (b == 0) | (b == -1) if a.dtype.is_signed else b == 0
    return t.where(special, 0, t.remainder(a, t.where(special, 1, b)))


def _fmod(t: Any, a: Any, b: Any) -> Any:
    if not _is_int(a):
        return t.fmod(a, b)
    special = (b == 0) | (b == -1) if a.dtype.is_signed else b == 0
    return t.where(special, 0, t.fmod(a, t.where(special, 1, b)))


def _sign(t: Any, a: Any) -> Any:
    return t.where(t.isnan(a), a, t.sign(a)) if a.dtype.is_floating_point else t.sign(a)


def _logical(name: str) -> Rule:
    return lambda t, a, b: getattr(t, name)(a, b)


def _named(name: str) -> Rule:
    return lambda t, *operands: getattr(t, name)(*operands)


def _unless_bool(name: str) -> Rule:
    """A function that leaves bools as they are; torch has none of them for these."""
    return lambda t, a: a.clone() if a.dtype is torch.bool else getattr(t, name)(a)


def _clone(t: Any, a: Any) -> Any:
    return a.clone()


def _reciprocal(t: Any, a: Any) -> Any:
    return t.reciprocal(a)


def _conjugate(t: Any, a: Any) -> Any:
    return t.conj_physical(a) if a.dtype.is_complex else a.clone()


def _shift(name: str) -> Rule:
    def shift(t: Any, a: Any, b: Any) -> Any:
        """NumPy defines what shifts by more than the width give; by less than 0, too."""
        width = torch.iinfo(a.dtype).bits
        beyond = (b < 0) | (b >= width)
        inside = t.where(beyond, 0, b)
        if name == "left":
            return t.where(beyond, 0, t.bitwise_left_shift(a, inside))
        outside = t.where(a < 0, -1, 0).to(a.dtype) if a.dtype.is_signed else t.zeros_like(a)
        return t.where(beyond, outside, t.bitwise_right_shift(a, inside))

    return shift


SCALARS: dict[str, Rule] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": lambda t, a, b: a * b,
    "divide": _divide,
    "less": lambda t, a, b: a < b,
    "less_equal": lambda t, a, b: a <= b,
    "equal": lambda t, a, b: a == b,
    "not_equal": lambda t, a, b: a != b,
    "greater": lambda t, a, b: a > b,
    "greater_equal": lambda t, a, b: a >= b,
}
"""Functions whose operands may be Python numbers, unless they are complex."""
TENSORS: dict[str, Rule] = {
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "fmod": _fmod,
    "power": _named("pow"),
    "sqrt_of": lambda t, a, b: t.sqrt(a),
    "maximum": _named("maximum"),
    "minimum": _named("minimum"),
    "fmax": _named("fmax"),
    "fmin": _named("fmin"),
    "arctan2": _named("arctan2"),
    "hypot": _named("hypot"),
    "copysign": _named("copysign"),
    "logaddexp": _named("logaddexp"),
    "logaddexp2": _named("logaddexp2"),
    "logical_and": _logical("logical_and"),
    "logical_or": _logical("logical_or"),
    "logical_xor": _logical("logical_xor"),
    "bitwise_and": lambda t, a, b: a & b,
    "bitwise_or": lambda t, a, b: a | b,
    "bitwise_xor": lambda t, a, b: a ^ b,
    "left_shift": _shift("left"),
    "right_shift": _shift("right"),
    "negative": _named("neg"),
    "positive": _clone,
    "absolute": _unless_bool("abs"),
    "fabs": _named("abs"),
    "sign": _sign,
    "rint": _named("round"),
    "floor": _unless_bool("floor"),
    "ceil": _unless_bool("ceil"),
    "trunc": _unless_bool("trunc"),
    "sqrt": _named("sqrt"),
    "square": lambda t, a: a * a,
    "reciprocal": _reciprocal,
    "exp": _named("exp"),
    "exp2": _named("exp2"),
    "expm1": _named("expm1"),
    "log": _named("log"),
    "log2": _named("log2"),
    "log10": _named("log10"),
    "log1p": _named("log1p"),
    "sin": _named("sin"),
    "cos": _named("cos"),
    "tan": _named("tan"),
    "arcsin": _named("arcsin"),
    "arccos": _named("arccos"),
    "arctan": _named("arctan"),
    "sinh": _named("sinh"),
    "cosh": _named("cosh"),
    "tanh": _named("tanh"),
    "arcsinh": _named("arcsinh"),
    "arccosh": _named("arccosh"),
    "arctanh": _named("arctanh"),
    "deg2rad": _named("deg2rad"),
    "radians": _named("deg2rad"),
    "rad2deg": _named("rad2deg"),
    "degrees": _named("rad2deg"),
    "isnan": _named("isnan"),
    "isinf": _named("isinf"),
    "isfinite": _named("isfinite"),
    "signbit": _named("signbit"),
    "logical_not": _named("logical_not"),
    "invert": _named("bitwise_not"),
    "conjugate": _conjugate,
}
"""Functions of tensors."""
COMPLEX = frozenset(
    {
        *("add", "subtract", "multiply", "equal", "not_equal", "negative", "positive"),
        *("absolute", "conjugate", "isnan", "isinf", "isfinite", "square", "exp"),
        *("logical_and", "logical_or", "logical_xor", "logical_not"),
    }
)
"""Functions that are captured for complex numbers too."""
FLOATS = frozenset({"reciprocal"})
"""Functions that are captured for floats only."""
