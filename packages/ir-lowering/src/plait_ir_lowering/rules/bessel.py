"""Bessel functions, by the approximations of ATen's kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import lowers
from plait_ir_lowering.rules import bessel_tables as tables
from plait_ir_lowering.rules.formulas import (
    add,
    div,
    mul,
    number,
    of_floats,
    power_series,
    sub,
    where,
)

_TWO_OVER_PI = 0.636619772367581343075535053490057448
_ROOT = 0.797884560802865355879892119868763737
"""Of two over pi."""
_PHASES = (0.785398163397448309615660845819875721, 2.356194490192344928846982537459627163)
_ROOTS = (
    (5.78318596294678452118e00, 3.04712623436620863991e01),
    (1.46819706421238932572e01, 4.92184563216946036703e01),
)
"""Squares of the first two zeros of the functions of the first kind."""


def _chebyshev_series(x: Value, coefficients: Sequence[float]) -> Value:
    """By Clenshaw's recurrence."""
    before, last = number(x, 0), number(x, 0)
    total = number(x, coefficients[0])
    for coefficient in coefficients[1:]:
        before, last = last, total
        total = add(sub(mul(x, last), before), number(x, coefficient))
    return mul(number(x, 0.5), sub(total, before))


def _ratio(x: Value, name: str, order: int) -> Value:
    top: Sequence[float] = getattr(tables, f"{name}_TOP_{order}")
    bottom: Sequence[float] = getattr(tables, f"{name}_BOTTOM_{order}")
    return div(power_series(x, top), power_series(x, bottom))


def _far(x: Value, order: int, first_kind: bool) -> Value:
    """Beyond 5: a wave whose amplitude falls as the root of x."""
    inverse = div(number(x, 5), x)
    square = mul(inverse, inverse) if order else div(number(x, 25), mul(x, x))
    angle = sub(x, number(x, _PHASES[order]))
    sine, cosine = Op("sin", [angle]), Op("cos", [angle])
    in_phase, other = (cosine, sine) if first_kind else (sine, cosine)
    main = mul(_ratio(square, "PHASE", order), in_phase)
    rest = mul(mul(inverse, _ratio(square, "QUADRATURE", order)), other)
    wave = sub(main, rest) if first_kind else add(main, rest)
    return div(mul(wave, number(x, _ROOT)), Op("sqrt", [x]))


def _j0(x: Value) -> Value:
    x = Op("abs", [x])
    square = mul(x, x)
    roots = [sub(square, number(x, root)) for root in _ROOTS[0]]
    near = mul(mul(roots[0], roots[1]), power_series(square, tables.FIRST_TOP_0))
    near = div(near, power_series(square, tables.FIRST_BOTTOM_0))
    parabola = sub(number(x, 1), div(square, number(x, 4)))
    near = where(Op("lt", [x, number(x, 0.00001)]), parabola, near)
    return where(Op("le", [x, number(x, 5)]), near, _far(x, 0, first_kind=True))


def _j1(given: Value) -> Value:
    x = Op("abs", [given])
    square = mul(x, x)
    roots = [sub(square, number(x, root)) for root in _ROOTS[1]]
    near = mul(mul(mul(_ratio(square, "FIRST", 1), x), roots[0]), roots[1])
    found = where(Op("le", [x, number(x, 5)]), near, _far(x, 1, first_kind=True))
    return where(Op("lt", [given, number(x, 0)]), Op("neg", [found]), found)


def _outside(x: Value, found: Value, at_zero: float) -> Value:
    """Not defined below zero, and infinite there."""
    found = where(Op("lt", [x, number(x, 0)]), number(x, math.nan), found)
    return where(Op("eq", [x, number(x, 0)]), number(x, at_zero), found)


def _y0(x: Value) -> Value:
    wave = mul(mul(number(x, _TWO_OVER_PI), Op("log", [x])), _j0(x))
    near = add(_ratio(mul(x, x), "SECOND", 0), wave)
    near = _outside(x, near, -math.inf)
    return where(Op("le", [x, number(x, 5)]), near, _far(x, 0, first_kind=False))


def _y1(x: Value) -> Value:
    wave = sub(mul(_j1(x), Op("log", [x])), div(number(x, 1), x))
    near = add(mul(x, _ratio(mul(x, x), "SECOND", 1)), mul(number(x, _TWO_OVER_PI), wave))
    near = _outside(x, near, -math.inf)
    return where(Op("le", [x, number(x, 5)]), near, _far(x, 1, first_kind=False))


def _scaled_i(given: Value, order: int, near: Sequence[float], far: Sequence[float]) -> Value:
    """The modified function of the first kind, of |x|, times exp(-|x|)."""
    x = Op("abs", [given])
    close = _chebyshev_series(sub(div(x, number(x, 2)), number(x, 2)), near)
    if order:
        close = mul(close, x)
    distant = _chebyshev_series(sub(div(number(x, 32), x), number(x, 2)), far)
    distant = div(distant, Op("sqrt", [x]))
    return where(Op("le", [x, number(x, 8)]), close, distant)


def _i0e(x: Value) -> Value:
    return _scaled_i(x, 0, tables.NEAR_I0, tables.FAR_I0)


def _i0(x: Value) -> Value:
    return _grown(x, _i0e(x))


def _i1e(x: Value) -> Value:
    narrow = x.dtype is DType.f32
    near = tables.NARROW_NEAR_I1 if narrow else tables.NEAR_I1
    return _odd(x, _scaled_i(x, 1, near, tables.NARROW_FAR_I1 if narrow else tables.FAR_I1))


def _i1(x: Value) -> Value:
    return _grown(x, _i1e(x))


def _modified_i1(x: Value) -> Value:
    return _odd(x, _grown(x, _scaled_i(x, 1, tables.NEAR_I1, tables.FAR_I1)))


def _grown(x: Value, scaled: Value) -> Value:
    return mul(Op("exp", [Op("abs", [x])]), scaled)


def _odd(x: Value, found: Value) -> Value:
    return where(Op("lt", [x, number(x, 0)]), Op("neg", [found]), found)


def _near_k(x: Value, order: int) -> Value:
    """Up to 2: by the function of the first kind, and a series."""
    argument = sub(mul(x, x), number(x, 2))
    logarithm = Op("log", [mul(number(x, 0.5), x)])
    if order:
        series = div(_chebyshev_series(argument, tables.NEAR_K1), x)
        return add(mul(logarithm, _modified_i1(x)), series)
    return sub(_chebyshev_series(argument, tables.NEAR_K0), mul(logarithm, _i0(x)))


def _k(order: int, scaled: bool) -> Callable[[Value], Value]:
    def compute(x: Value) -> Value:
        near = _near_k(x, order)
        series = tables.FAR_K1 if order else tables.FAR_K0
        far = _chebyshev_series(sub(div(number(x, 8), x), number(x, 2)), series)
        if scaled:
            near = mul(near, Op("exp", [x]))
        else:
            far = mul(Op("exp", [Op("neg", [x])]), far)
        far = div(far, Op("sqrt", [x]))
        return _outside(x, where(Op("le", [x, number(x, 2)]), near, far), math.inf)

    return compute


def _spherical_j0(x: Value) -> Value:
    square = mul(x, x)
    signed = (6227020800, -39916800, 362880, -5040, 120, -6, 1)
    near = power_series(square, [1 / each for each in signed])
    sine = div(Op("sin", [x]), x)
    found = where(Op("lt", [Op("abs", [x]), number(x, 0.5)]), near, sine)
    return where(Op("isinf", [x]), number(x, 0), found)


for _name, _compute in {
    "i0": _i0,
    "special_i0e": _i0e,
    "special_i1": _i1,
    "special_i1e": _i1e,
    "special_bessel_j0": _j0,
    "special_bessel_j1": _j1,
    "special_bessel_y0": _y0,
    "special_bessel_y1": _y1,
    "special_modified_bessel_i0": _i0,
    "special_modified_bessel_i1": _modified_i1,
    "special_modified_bessel_k0": _k(0, scaled=False),
    "special_modified_bessel_k1": _k(1, scaled=False),
    "special_scaled_modified_bessel_k0": _k(0, scaled=True),
    "special_scaled_modified_bessel_k1": _k(1, scaled=True),
    "special_spherical_bessel_j0": _spherical_j0,
}.items():
    lowers(_name)(of_floats(_compute))
