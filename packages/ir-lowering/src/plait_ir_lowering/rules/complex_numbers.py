"""Arithmetic of complex numbers, as that of their real and imaginary parts.

Formulas are those of ATen's vectors. What has none here, a rule declines: ATen computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from plait_ir_lowering.ir.ops import TypeMismatchError
from plait_ir_lowering.ir.values import Op, Value, part
from plait_ir_lowering.rules.formulas import add, div, is_equal, mul, neg, number, sub, where

Parts: TypeAlias = tuple[Value, Value]


def op(name: str, args: Sequence[Value]) -> Value:
    """An operation on numbers of any kind. Raises TypeMismatchError for one that is not defined."""
    if not any(arg.dtype.kind == "complex" for arg in args):
        return Op(name, args)
    formula = _FORMULAS.get(name)
    if formula is None:
        raise TypeMismatchError(f"{name} of complex numbers is not written with their parts")
    return formula(*args)


def parts(value: Value) -> Parts:
    """The real and the imaginary part."""
    return part("real", value), part("imag", value)


def pair(real: Value, imaginary: Value) -> Value:
    """The complex number of two parts."""
    return Op("complex", [real, imaginary])


def conjugate(value: Value) -> Value:
    """The number with the opposite imaginary part; a real number is its own."""
    if value.dtype.kind != "complex":
        return value
    real, imaginary = parts(value)
    return pair(real, neg(imaginary))


def magnitude(value: Value) -> Value:
    """How far a number is from 0, as a real number."""
    return Op("hypot", parts(value))


def angle(value: Value) -> Value:
    real, imaginary = parts(value)
    return Op("atan2", [imaginary, real])


def polar(size: Value, turn: Value) -> Value:
    """The number of a magnitude at an angle."""
    return pair(mul(size, Op("cos", [turn])), mul(size, Op("sin", [turn])))


def _by_parts(name: str) -> Callable[..., Value]:
    def compute(*operands: Value) -> Value:
        reals, imaginaries = zip(*map(parts, operands), strict=True)
        return pair(Op(name, reals), Op(name, imaginaries))

    return compute


def _product(x: Value, y: Value) -> Value:
    (a, b), (c, d) = parts(x), parts(y)
    return pair(sub(mul(a, c), mul(b, d)), add(mul(a, d), mul(b, c)))


def _quotient(x: Value, y: Value) -> Value:
    """Both scaled by the larger part of the divisor, so that no square overflows."""
    (a, b), (c, d) = parts(x), parts(y)
    scale = Op("maximum", [Op("abs", [c]), Op("abs", [d])])
    a, b, c, d = (div(each, scale) for each in (a, b, c, d))
    below = add(mul(c, c), mul(d, d))
    return pair(
        div(add(mul(a, c), mul(b, d)), below),
        div(sub(mul(b, c), mul(a, d)), below),
    )


def _reciprocal(x: Value) -> Value:
    real, _ = parts(x)
    return _quotient(pair(number(real, 1), number(real, 0)), x)


def _sign(x: Value) -> Value:
    """The number of magnitude 1 in the same direction; 0 of 0."""
    real, imaginary = parts(x)
    size = magnitude(x)
    at_zero = is_equal(size, 0)
    zero = number(size, 0)
    return pair(
        where(at_zero, zero, div(real, size)),
        where(at_zero, zero, div(imaginary, size)),
    )


def _exponential(x: Value) -> Value:
    real, imaginary = parts(x)
    return polar(Op("exp", [real]), imaginary)


def _logarithm(base: float) -> Callable[[Value], Value]:
    def compute(x: Value) -> Value:
        real, imaginary = Op("log", [magnitude(x)]), angle(x)
        if base == math.e:
            return pair(real, imaginary)
        scale = number(real, 1 / math.log(base))
        return pair(mul(real, scale), mul(imaginary, scale))

    return compute


def _square_root(x: Value) -> Value:
    """The one with a real part that is not negative; the larger part first, without differences."""
    real, imaginary = parts(x)
    half = mul(add(magnitude(x), Op("abs", [real])), number(real, 0.5))
    large = Op("sqrt", [half])
    small = div(mul(imaginary, number(real, 0.5)), large)
    small = where(is_equal(large, 0), imaginary, small)
    is_left = Op("lt", [real, number(real, 0)])
    return pair(
        where(is_left, Op("abs", [small]), large),
        where(is_left, Op("copysign", [large, imaginary]), small),
    )


def _sine(x: Value) -> Value:
    real, imaginary = parts(x)
    return pair(
        mul(Op("sin", [real]), Op("cosh", [imaginary])),
        mul(Op("cos", [real]), Op("sinh", [imaginary])),
    )


def _cosine(x: Value) -> Value:
    real, imaginary = parts(x)
    return pair(
        mul(Op("cos", [real]), Op("cosh", [imaginary])),
        neg(mul(Op("sin", [real]), Op("sinh", [imaginary]))),
    )


def _hyperbolic_sine(x: Value) -> Value:
    real, imaginary = parts(x)
    return pair(
        mul(Op("sinh", [real]), Op("cos", [imaginary])),
        mul(Op("cosh", [real]), Op("sin", [imaginary])),
    )


def _hyperbolic_cosine(x: Value) -> Value:
    real, imaginary = parts(x)
    return pair(
        mul(Op("cosh", [real]), Op("cos", [imaginary])),
        mul(Op("sinh", [real]), Op("sin", [imaginary])),
    )


def _sigmoid(x: Value) -> Value:
    real, imaginary = parts(x)
    powers = parts(_exponential(pair(neg(real), neg(imaginary))))
    return _reciprocal(pair(add(powers[0], number(real, 1)), powers[1]))


def _equal(x: Value, y: Value) -> Value:
    (a, b), (c, d) = parts(x), parts(y)
    return Op("logical_and", [Op("eq", [a, c]), Op("eq", [b, d])])


def _unequal(x: Value, y: Value) -> Value:
    return Op("logical_not", [_equal(x, y)])


_FORMULAS: dict[str, Callable[..., Value]] = {
    **{name: _by_parts(name) for name in ("add", "sub", "neg")},
    "mul": _product,
    "div": _quotient,
    "reciprocal": _reciprocal,
    "square": lambda x: _product(x, x),
    "abs": magnitude,
    "sign": _sign,
    "exp": _exponential,
    "log": _logarithm(math.e),
    "log2": _logarithm(2),
    "log10": _logarithm(10),
    "sqrt": _square_root,
    "rsqrt": lambda x: _reciprocal(_square_root(x)),
    "sin": _sine,
    "cos": _cosine,
    "sinh": _hyperbolic_sine,
    "cosh": _hyperbolic_cosine,
    "sigmoid": _sigmoid,
    "eq": _equal,
    "ne": _unequal,
}
"""Of the operations that loops compute with real numbers."""
