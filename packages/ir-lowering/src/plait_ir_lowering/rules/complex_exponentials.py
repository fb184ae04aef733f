"""Exponentials, logarithms, roots and powers of complex numbers, by their parts.

Infinities, NaN and zeros give what C's functions give (ISO C, annex G), which eager calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from plait_ir_lowering.context import cast
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.rules.complex_numbers import (
    angle,
    both,
    difference,
    is_finite,
    magnitude,
    negative,
    pair,
    parts,
    product,
    reciprocal,
    scaled,
    total,
)
from plait_ir_lowering.rules.formulas import (
    add,
    div,
    is_below,
    is_equal,
    mul,
    number,
    sub,
    where,
)


def times_power(factors: tuple[Value, Value], exponent: Value) -> tuple[Value, Value]:
    """Each of two numbers of at most 1 times e to the `exponent`, which alone may overflow.

    By the root of the power, twice: an exponent's half is exact.
    """
    largest = 177.0 if exponent.dtype is DType.f32 else 1419.0
    limited = Op("minimum", [exponent, number(exponent, largest)])
    root = Op("exp", [mul(limited, number(exponent, 0.5))])
    first, second = (mul(mul(root, factor), root) for factor in factors)
    return first, second


def exponential(x: Value) -> Value:
    real, imaginary = parts(x)
    cosine, sine = times_power((Op("cos", [imaginary]), Op("sin", [imaginary])), real)
    # An infinite magnitude in no direction.
    odd = both(Op("isinf", [real]), Op("logical_not", [is_finite(imaginary)]))
    vanishes = is_below(real, 0)
    size = where(vanishes, number(real, 0), number(real, math.inf))
    unknown = where(vanishes, number(real, 0), number(real, math.nan))
    return pair(
        where(odd, size, cosine),
        where(odd, unknown, where(is_equal(imaginary, 0), imaginary, sine)),
    )


def exponential_of_two(x: Value) -> Value:
    return exponential(scaled(x, math.log(2)))


def exponential_less_one(x: Value) -> Value:
    """Accurate near 0: `cos(y) - 1` is `-2 sin(y / 2) ** 2`."""
    real, imaginary = parts(x)
    half = Op("sin", [mul(imaginary, number(real, 0.5))])
    bent = mul(mul(number(real, 2), half), half)
    return pair(
        sub(mul(Op("expm1", [real]), Op("cos", [imaginary])), bent),
        mul(Op("exp", [real]), Op("sin", [imaginary])),
    )


def logarithm(base: float = math.e) -> Callable[[Value], Value]:
    def compute(x: Value) -> Value:
        found = pair(_logarithm_of_magnitude(x), angle(x))
        return found if base == math.e else scaled(found, 1 / math.log(base))

    return compute


def _logarithm_of_magnitude(x: Value) -> Value:
    """Of one near 1 by its square less 1, where the magnitude itself would be rounded."""
    size = magnitude(x)
    first, second = (Op("abs", [each]) for each in parts(x))
    large, small = Op("maximum", [first, second]), Op("minimum", [first, second])
    one = number(size, 1)
    past = add(mul(sub(large, one), add(large, one)), mul(small, small))
    near = mul(number(size, 0.5), Op("log1p", [past]))
    is_near = both(Op("gt", [size, number(size, 0.5)]), is_below(size, 2))
    return where(is_near, near, Op("log", [size]))


def logarithm_of_more_than_one(x: Value) -> Value:
    """log(1 + x), accurate near 0: there by the square of the magnitude, less 1."""
    real, imaginary = parts(x)
    more = add(real, number(real, 1))
    square = add(mul(real, add(number(real, 2), real)), mul(imaginary, imaginary))
    near = where(is_equal(square, 0), real, mul(number(real, 0.5), Op("log1p", [square])))
    far = Op("log", [Op("hypot", [more, imaginary])])
    return pair(where(is_below(magnitude(x), 0.5), near, far), Op("atan2", [imaginary, more]))


def square_root(x: Value) -> Value:
    """The one with a real part that is not negative; the larger part first, without differences."""
    real, imaginary = parts(x)
    half = number(real, 0.5)
    large: Value = Op("sqrt", [add(mul(magnitude(x), half), mul(Op("abs", [real]), half))])
    small = div(mul(imaginary, half), large)
    small = where(is_equal(large, 0), imaginary, small)
    endless = Op("isinf", [imaginary])
    large = where(endless, Op("abs", [imaginary]), large)
    small = where(endless, imaginary, small)
    is_left = is_below(real, 0)
    return pair(
        where(is_left, Op("abs", [small]), large),
        where(is_left, Op("copysign", [large, imaginary]), small),
    )


def root_below_one(x: Value) -> Value:
    return reciprocal(square_root(x))


def power(base: Value, exponent: Value) -> Value:
    """In f64, since what the logarithm loses by rounding the exponent multiplies."""
    wide = (cast(each, DType.c128) for each in (exponent, logarithm()(cast(base, DType.c128))))
    return cast(exponential(product(*wide)), base.dtype)


def logarithm_of_sum(x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y)), from the one with the larger real part, or the one that is NaN."""
    takes_first: Value = Op("logical_or", [is_unknown(x), Op("ge", [parts(x)[0], parts(y)[0]])])
    takes_first = both(takes_first, Op("logical_not", [is_unknown(y)]))
    larger, smaller = where(takes_first, x, y), where(takes_first, y, x)
    summed = total(logarithm_of_more_than_one(exponential(difference(smaller, larger))), larger)
    high, low = parts(larger)[0], parts(smaller)[0]
    alike = both(Op("isinf", [low]), Op("eq", [low, high]))
    infinite = logarithm()(total(exponential(larger), exponential(smaller)))
    summed = where(alike, where(is_below(low, 0), smaller, infinite), summed)
    unknown = number(low, math.nan)
    return where(is_unknown(larger), pair(unknown, unknown), summed)


def is_unknown(x: Value) -> Value:
    """Whether a part is NaN."""
    return Op("logical_or", [Op("isnan", [each]) for each in parts(x)])


def sigmoid(x: Value) -> Value:
    real, imaginary = parts(exponential(negative(x)))
    return reciprocal(pair(add(real, number(real, 1)), imaginary))
