"""Arithmetic of complex numbers, as that of their real and imaginary parts.

Formulas are ATen's, so that infinities and zeros become what they are in eager.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from plait_ir_lowering.ir.values import Op, Value, part
from plait_ir_lowering.rules.formulas import add, div, is_equal, mul, neg, number, sub, where

Parts: TypeAlias = tuple[Value, Value]


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


def is_finite(value: Value) -> Value:
    """Whether a real number is neither an infinity nor NaN."""
    return Op("lt", [Op("abs", [value]), number(value, math.inf)])


def both(a: Value, b: Value) -> Value:
    return Op("logical_and", [a, b])


def negative(value: Value) -> Value:
    real, imaginary = parts(value)
    return pair(neg(real), neg(imaginary))


def total(x: Value, y: Value) -> Value:
    (a, b), (c, d) = parts(x), parts(y)
    return pair(add(a, c), add(b, d))


def difference(x: Value, y: Value) -> Value:
    (a, b), (c, d) = parts(x), parts(y)
    return pair(sub(a, c), sub(b, d))


def product(x: Value, y: Value) -> Value:
    (a, b), (c, d) = parts(x), parts(y)
    return pair(sub(mul(a, c), mul(b, d)), add(mul(a, d), mul(b, c)))


def scaled(x: Value, factor: float) -> Value:
    """The number times a real one."""
    real, imaginary = parts(x)
    return pair(mul(real, number(real, factor)), mul(imaginary, number(real, factor)))


def quotient(x: Value, y: Value) -> Value:
    """By R. L. Smith's algorithm (Communications of the ACM 5, 1962): no square overflows."""
    (a, b), (c, d) = parts(x), parts(y)
    is_wide = Op("ge", [Op("abs", [c]), Op("abs", [d])])
    large, small = where(is_wide, c, d), where(is_wide, d, c)
    ratio = div(small, large)
    scale = div(number(c, 1), add(large, mul(small, ratio)))
    crossed = (where(is_wide, b, a), where(is_wide, a, b))
    real = mul(add(mul(crossed[0], ratio), crossed[1]), scale)
    turned = (where(is_wide, neg(a), b), where(is_wide, b, neg(a)))
    imaginary = mul(add(mul(turned[0], ratio), turned[1]), scale)
    by_zero = both(is_equal(c, 0), is_equal(d, 0))
    return pair(
        where(by_zero, div(a, Op("abs", [c])), real),
        where(by_zero, div(b, Op("abs", [d])), imaginary),
    )


def reciprocal(x: Value) -> Value:
    real, _ = parts(x)
    return quotient(pair(number(real, 1), number(real, 0)), x)


def direction(x: Value) -> Value:
    """The number of magnitude 1 in the same direction; 0 of 0."""
    real, imaginary = parts(x)
    size = magnitude(x)
    at_zero = is_equal(size, 0)
    zero = number(size, 0)
    return pair(
        where(at_zero, zero, div(real, size)),
        where(at_zero, zero, div(imaginary, size)),
    )


def equal(x: Value, y: Value) -> Value:
    (a, b), (c, d) = parts(x), parts(y)
    return both(Op("eq", [a, c]), Op("eq", [b, d]))


def unequal(x: Value, y: Value) -> Value:
    return Op("logical_not", [equal(x, y)])
