"""Trigonometric and hyperbolic functions of complex numbers, and their inverses, by the parts.

Infinities, NaN and zeros give what C's functions give (ISO C, annex G), which eager calls. The
circular functions are the hyperbolic ones of the number turned by a right angle. The inverses are
W. Kahan's ("Branch cuts for complex elementary functions", 1987).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.rules.complex_exponentials import square_root, times_power
from plait_ir_lowering.rules.complex_numbers import both, is_finite, pair, parts
from plait_ir_lowering.rules.formulas import (
    add,
    div,
    is_below,
    is_equal,
    mul,
    neg,
    number,
    sub,
    where,
)


def _turned(compute: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """`-i f(i x)`, which is the sine of the hyperbolic sine and so on."""

    def turned(x: Value) -> Value:
        real, imaginary = parts(x)
        first, second = parts(compute(pair(neg(imaginary), real)))
        return pair(second, neg(first))

    return turned


def _grown(x: Value, whole: Value, odd: Value) -> tuple[Value, Value]:
    """`cosh(x) * whole` and `sinh(x) * odd`, of which only the products may overflow."""
    size = Op("abs", [x])
    half = number(x, 0.5)
    even_power, odd_power = times_power((mul(whole, half), mul(odd, half)), size)
    signed = where(is_below(x, 0), neg(odd_power), odd_power)
    is_large = Op("gt", [size, number(x, 80.0 if x.dtype is DType.f32 else 700.0)])
    return (
        where(is_large, even_power, mul(Op("cosh", [x]), whole)),
        where(is_large, signed, mul(Op("sinh", [x]), odd)),
    )


def hyperbolic_sine(x: Value) -> Value:
    real, imaginary = parts(x)
    sine, cosine = Op("sin", [imaginary]), Op("cos", [imaginary])
    in_phase, across = _grown(real, sine, cosine)
    in_phase = where(is_equal(imaginary, 0), imaginary, in_phase)
    fixed = Op("logical_or", [is_equal(real, 0), Op("isinf", [real])])
    no_angle = Op("logical_not", [is_finite(imaginary)])
    size = where(is_equal(real, 0), real, Op("abs", [real]))
    return pair(where(both(fixed, no_angle), size, across), in_phase)


def hyperbolic_cosine(x: Value) -> Value:
    real, imaginary = parts(x)
    sine, cosine = Op("sin", [imaginary]), Op("cos", [imaginary])
    along, across = _grown(real, cosine, sine)
    no_angle = Op("logical_not", [is_finite(imaginary)])
    along = where(both(Op("isinf", [real]), no_angle), Op("abs", [real]), along)
    signed = where(Op("signbit", [real]), neg(imaginary), imaginary)
    across = where(is_equal(imaginary, 0), signed, across)
    across = where(both(is_equal(real, 0), no_angle), number(real, 0), across)
    return pair(along, across)


def hyperbolic_tangent(x: Value) -> Value:
    real, imaginary = parts(x)
    sine, cosine = Op("sin", [imaginary]), Op("cos", [imaginary])
    turn = mul(sine, cosine)
    growth = Op("sinh", [real])
    below = add(mul(growth, growth), mul(cosine, cosine))
    size = Op("abs", [real])
    is_large = Op("gt", [size, number(real, 40.0 if real.dtype is DType.f32 else 350.0)])
    decay = Op("exp", [mul(size, number(real, -2))])
    along = where(
        is_large,
        Op("copysign", [number(real, 1), real]),
        div(mul(growth, Op("cosh", [real])), below),
    )
    across = where(is_large, mul(mul(number(real, 4), turn), decay), div(turn, below))
    no_angle = Op("logical_not", [is_finite(imaginary)])
    is_end = Op("isinf", [real])
    across = where(both(is_end, no_angle), Op("copysign", [number(real, 0), imaginary]), across)
    unknown = where(is_equal(real, 0), real, number(real, math.nan))
    return pair(
        where(both(no_angle, Op("logical_not", [is_end])), unknown, along),
        where(is_equal(imaginary, 0), imaginary, across),
    )


def _is_endless(x: Value) -> Value:
    return Op("logical_or", [Op("isinf", [each]) for each in parts(x)])


def _endless(sign: Value) -> Value:
    return Op("copysign", [number(sign, math.inf), sign])


def _roots(x: Value) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    """The parts of sqrt(1 - x) and of sqrt(1 + x)."""
    real, imaginary = parts(x)
    one = number(real, 1)
    less = square_root(pair(sub(one, real), neg(imaginary)))
    return parts(less), parts(square_root(pair(add(one, real), imaginary)))


def inverse_sine(x: Value) -> Value:
    (a, b), (c, d) = _roots(x)
    real, imaginary = parts(x)
    endless = _is_endless(x)
    beside = where(endless, Op("abs", [imaginary]), sub(mul(a, c), mul(b, d)))
    turn = Op("atan2", [real, beside])
    return pair(
        where(is_equal(real, 0), real, turn),
        where(endless, _endless(imaginary), Op("asinh", [sub(mul(a, d), mul(b, c))])),
    )


def inverse_cosine(x: Value) -> Value:
    (a, b), (c, d) = _roots(x)
    real, imaginary = parts(x)
    endless = _is_endless(x)
    turn = mul(number(a, 2), Op("atan2", [a, c]))
    turn = where(endless, Op("atan2", [Op("abs", [imaginary]), real]), turn)
    return pair(
        where(_is_unknown_across(x), number(real, math.pi / 2), turn),
        where(endless, neg(_endless(imaginary)), Op("asinh", [sub(mul(c, b), mul(d, a))])),
    )


def _is_unknown_across(x: Value) -> Value:
    """Whether it is NaN times i."""
    real, imaginary = parts(x)
    return both(is_equal(real, 0), Op("isnan", [imaginary]))


def inverse_hyperbolic_cosine(x: Value) -> Value:
    real, imaginary = parts(x)
    one = number(real, 1)
    a, b = parts(square_root(pair(sub(real, one), imaginary)))
    c, d = parts(square_root(pair(add(real, one), imaginary)))
    endless = _is_endless(x)
    turn = mul(number(real, 2), Op("atan2", [b, c]))
    turn = where(endless, Op("atan2", [imaginary, real]), turn)
    size = Op("asinh", [add(mul(a, c), mul(b, d))])
    return pair(
        where(endless, number(real, math.inf), size),
        where(_is_unknown_across(x), number(real, math.pi / 2), turn),
    )


def inverse_hyperbolic_tangent(x: Value) -> Value:
    real, imaginary = parts(x)
    one, size = number(real, 1), Op("abs", [real])
    rest = sub(one, size)
    distance = Op("hypot", [rest, imaginary])
    ratio = div(div(mul(number(real, 4), size), distance), distance)
    growth = mul(number(real, 0.25), Op("log1p", [ratio]))
    past = sub(mul(rest, add(one, size)), mul(imaginary, imaginary))
    turn = mul(number(real, 0.5), Op("atan2", [mul(number(real, 2), imaginary), past]))
    endless = _is_endless(x)
    right_angle = Op("copysign", [number(real, math.pi / 2), imaginary])
    still = Op("logical_or", [endless, is_equal(real, 0)])
    return pair(
        Op("copysign", [where(still, number(real, 0), growth), real]),
        where(both(endless, _is_known(imaginary)), right_angle, turn),
    )


def _is_known(value: Value) -> Value:
    return Op("eq", [value, value])


def sine(x: Value) -> Value:
    """Where it has no angle, an infinite one points upwards, as C's does."""
    real, imaginary = parts(x)
    along, across = parts(_turned(hyperbolic_sine)(x))
    no_angle = Op("logical_not", [is_finite(real)])
    upwards = both(Op("isinf", [imaginary]), no_angle)
    return pair(along, where(upwards, number(real, math.inf), across))


tangent = _turned(hyperbolic_tangent)
inverse_hyperbolic_sine = _turned(inverse_sine)
inverse_tangent = _turned(inverse_hyperbolic_tangent)


def cosine(x: Value) -> Value:
    real, imaginary = parts(x)
    return hyperbolic_cosine(pair(neg(imaginary), real))
