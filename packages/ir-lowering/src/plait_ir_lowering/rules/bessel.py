"""Bessel functions, by the approximations of ATen's kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion

from plait_ir_lowering.context import LoweringContext, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules import bessel_tables as tables
from plait_ir_lowering.rules.elementwise import elementwise
from plait_ir_lowering.tensors import TensorExpr

_TWO_OVER_PI = 0.636619772367581343075535053490057448
_ROOT = 0.797884560802865355879892119868763737
"""Of two over pi."""
_PHASES = (0.785398163397448309615660845819875721, 2.356194490192344928846982537459627163)
_ROOTS = (
    (5.78318596294678452118e00, 3.04712623436620863991e01),
    (1.46819706421238932572e01, 4.92184563216946036703e01),
)
"""Squares of the first two zeros of the functions of the first kind."""


def _n(like: Value, number: float) -> Value:
    return constant(number, like.dtype)


def _add(a: Value, b: Value) -> Value:
    return Op("add", [a, b])


def _sub(a: Value, b: Value) -> Value:
    return Op("sub", [a, b])


def _mul(a: Value, b: Value) -> Value:
    return Op("mul", [a, b])


def _div(a: Value, b: Value) -> Value:
    return Op("div", [a, b])


def _where(condition: Value, a: Value, b: Value) -> Value:
    return Op("where", [condition, a, b])


def _power_series(x: Value, coefficients: Sequence[float]) -> Value:
    total = _n(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = _add(_mul(total, x), _n(x, coefficient))
    return total


def _chebyshev_series(x: Value, coefficients: Sequence[float]) -> Value:
    """By Clenshaw's recurrence."""
    before, last = _n(x, 0), _n(x, 0)
    total = _n(x, coefficients[0])
    for coefficient in coefficients[1:]:
        before, last = last, total
        total = _add(_sub(_mul(x, last), before), _n(x, coefficient))
    return _mul(_n(x, 0.5), _sub(total, before))


def _ratio(x: Value, name: str, order: int) -> Value:
    top: Sequence[float] = getattr(tables, f"{name}_TOP_{order}")
    bottom: Sequence[float] = getattr(tables, f"{name}_BOTTOM_{order}")
    return _div(_power_series(x, top), _power_series(x, bottom))


def _far(x: Value, order: int, first_kind: bool) -> Value:
    """Beyond 5: a wave whose amplitude falls as the root of x."""
    inverse = _div(_n(x, 5), x)
    square = _mul(inverse, inverse) if order else _div(_n(x, 25), _mul(x, x))
    angle = _sub(x, _n(x, _PHASES[order]))
    sine, cosine = Op("sin", [angle]), Op("cos", [angle])
    in_phase, other = (cosine, sine) if first_kind else (sine, cosine)
    main = _mul(_ratio(square, "PHASE", order), in_phase)
    rest = _mul(_mul(inverse, _ratio(square, "QUADRATURE", order)), other)
    wave = _sub(main, rest) if first_kind else _add(main, rest)
    return _div(_mul(wave, _n(x, _ROOT)), Op("sqrt", [x]))


def _j0(x: Value) -> Value:
    x = Op("abs", [x])
    square = _mul(x, x)
    roots = [_sub(square, _n(x, root)) for root in _ROOTS[0]]
    near = _mul(_mul(roots[0], roots[1]), _power_series(square, tables.FIRST_TOP_0))
    near = _div(near, _power_series(square, tables.FIRST_BOTTOM_0))
    parabola = _sub(_n(x, 1), _div(square, _n(x, 4)))
    near = _where(Op("lt", [x, _n(x, 0.00001)]), parabola, near)
    return _where(Op("le", [x, _n(x, 5)]), near, _far(x, 0, first_kind=True))


def _j1(given: Value) -> Value:
    x = Op("abs", [given])
    square = _mul(x, x)
    roots = [_sub(square, _n(x, root)) for root in _ROOTS[1]]
    near = _mul(_mul(_mul(_ratio(square, "FIRST", 1), x), roots[0]), roots[1])
    found = _where(Op("le", [x, _n(x, 5)]), near, _far(x, 1, first_kind=True))
    return _where(Op("lt", [given, _n(x, 0)]), Op("neg", [found]), found)


def _outside(x: Value, found: Value, at_zero: float) -> Value:
    """Not defined below zero, and infinite there."""
    found = _where(Op("lt", [x, _n(x, 0)]), _n(x, math.nan), found)
    return _where(Op("eq", [x, _n(x, 0)]), _n(x, at_zero), found)


def _y0(x: Value) -> Value:
    wave = _mul(_mul(_n(x, _TWO_OVER_PI), Op("log", [x])), _j0(x))
    near = _add(_ratio(_mul(x, x), "SECOND", 0), wave)
    near = _outside(x, near, -math.inf)
    return _where(Op("le", [x, _n(x, 5)]), near, _far(x, 0, first_kind=False))


def _y1(x: Value) -> Value:
    wave = _sub(_mul(_j1(x), Op("log", [x])), _div(_n(x, 1), x))
    near = _add(_mul(x, _ratio(_mul(x, x), "SECOND", 1)), _mul(_n(x, _TWO_OVER_PI), wave))
    near = _outside(x, near, -math.inf)
    return _where(Op("le", [x, _n(x, 5)]), near, _far(x, 1, first_kind=False))


def _scaled_i(given: Value, order: int, near: Sequence[float], far: Sequence[float]) -> Value:
    """The modified function of the first kind, of |x|, times exp(-|x|)."""
    x = Op("abs", [given])
    close = _chebyshev_series(_sub(_div(x, _n(x, 2)), _n(x, 2)), near)
    if order:
        close = _mul(close, x)
    distant = _chebyshev_series(_sub(_div(_n(x, 32), x), _n(x, 2)), far)
    distant = _div(distant, Op("sqrt", [x]))
    return _where(Op("le", [x, _n(x, 8)]), close, distant)


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
    return _mul(Op("exp", [Op("abs", [x])]), scaled)


def _odd(x: Value, found: Value) -> Value:
    return _where(Op("lt", [x, _n(x, 0)]), Op("neg", [found]), found)


def _near_k(x: Value, order: int) -> Value:
    """Up to 2: by the function of the first kind, and a series."""
    argument = _sub(_mul(x, x), _n(x, 2))
    logarithm = Op("log", [_mul(_n(x, 0.5), x)])
    if order:
        series = _div(_chebyshev_series(argument, tables.NEAR_K1), x)
        return _add(_mul(logarithm, _modified_i1(x)), series)
    return _sub(_chebyshev_series(argument, tables.NEAR_K0), _mul(logarithm, _i0(x)))


def _k(order: int, scaled: bool) -> Callable[[Value], Value]:
    def compute(x: Value) -> Value:
        near = _near_k(x, order)
        series = tables.FAR_K1 if order else tables.FAR_K0
        far = _chebyshev_series(_sub(_div(_n(x, 8), x), _n(x, 2)), series)
        if scaled:
            near = _mul(near, Op("exp", [x]))
        else:
            far = _mul(Op("exp", [Op("neg", [x])]), far)
        far = _div(far, Op("sqrt", [x]))
        return _outside(x, _where(Op("le", [x, _n(x, 2)]), near, far), math.inf)

    return compute


def _spherical_j0(x: Value) -> Value:
    square = _mul(x, x)
    signed = (6227020800, -39916800, 362880, -5040, 120, -6, 1)
    near = _power_series(square, [1 / each for each in signed])
    sine = _div(Op("sin", [x]), x)
    found = _where(Op("lt", [Op("abs", [x]), _n(x, 0.5)]), near, sine)
    return _where(Op("isinf", [x]), _n(x, 0), found)


def _rule(compute: Callable[[Value], Value]) -> Callable[[LoweringContext, TensorExpr], Lowered]:
    def rule(ctx: LoweringContext, x: TensorExpr) -> Lowered:
        return elementwise(ctx, [x], compute, Promotion.INT_TO_FLOAT)

    return rule


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
    lowers(_name)(_rule(_compute))
