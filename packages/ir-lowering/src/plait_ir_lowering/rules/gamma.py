"""Derivatives of the logarithm of the gamma function, by the approximations of ATen's kernels."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion

from plait_ir_lowering.context import LoweringContext, cast
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.elementwise import elementwise
from plait_ir_lowering.rules.formulas import number, of_floats
from plait_ir_lowering.rules.zeta import zeta
from plait_ir_lowering.tensors import TensorExpr

_AT_TEN = 2.25175258906672110764
_ASYMPTOTIC = (
    *(8.33333333333333333333e-2, -2.10927960927960927961e-2, 7.57575757575757575758e-3),
    *(-4.16666666666666666667e-3, 3.96825396825396825397e-3, -8.33333333333333333333e-3),
    8.33333333333333333333e-2,
)
"""From the highest power of 1 / x² on."""


def _digamma(x: Value) -> Value:
    negative = Op("lt", [x, number(x, 0)])
    positive = Op("where", [negative, Op("sub", [number(x, 1), x]), x])
    found = _of_positive(positive)
    wide = cast(x, DType.f64)
    turned = Op("mul", [number(wide, math.pi), Op("sub", [wide, Op("trunc", [wide])])])
    mirrored = cast(Op("div", [number(wide, math.pi), Op("tan", [turned])]), x.dtype)
    found = Op("where", [negative, Op("sub", [found, mirrored]), found])
    is_whole = Op("eq", [x, Op("trunc", [x])])
    is_pole = Op("logical_and", [negative, is_whole])
    found = Op("where", [is_pole, number(x, math.nan), found])
    at_zero = Op("copysign", [number(x, math.inf), Op("neg", [x])])
    return Op("where", [Op("eq", [x, number(x, 0)]), at_zero, found])


def _of_positive(x: Value) -> Value:
    """Steps of one until x is at least 10, and a series from there on."""
    result = number(x, 0)
    for _ in range(10):
        is_low = Op("lt", [x, number(x, 10)])
        result = Op("where", [is_low, Op("sub", [result, Op("div", [number(x, 1), x])]), result])
        x = Op("where", [is_low, Op("add", [x, number(x, 1)]), x])
    inverse = Op("div", [number(x, 1), Op("mul", [x, x])])
    series = number(x, _ASYMPTOTIC[0])
    for coefficient in _ASYMPTOTIC[1:]:
        series = Op("add", [Op("mul", [series, inverse]), number(x, coefficient)])
    series = Op("mul", [inverse, series])
    rest = Op("where", [Op("lt", [x, number(x, 1e17)]), series, number(x, 0)])
    far = Op("add", [result, Op("log", [x])])
    far = Op("sub", [Op("sub", [far, Op("div", [number(x, 0.5), x])]), rest])
    return Op("where", [Op("eq", [x, number(x, 10)]), Op("add", [result, number(x, _AT_TEN)]), far])


def _trigamma(x: Value) -> Value:
    low = Op("lt", [x, number(x, 0.5)])
    sine = Op("sin", [Op("mul", [number(x, math.pi), x])])
    pi = number(x, math.pi)
    mirrored = Op("neg", [Op("div", [Op("mul", [pi, pi]), Op("mul", [sine, sine])])])
    result = Op("where", [low, mirrored, number(x, 0)])
    x = Op("where", [low, Op("sub", [number(x, 1), x]), x])
    for _ in range(6):
        result = Op("add", [result, Op("div", [number(x, 1), Op("mul", [x, x])])])
        x = Op("add", [x, number(x, 1)])
    inverse = Op("div", [number(x, 1), Op("mul", [x, x])])
    inner = Op("sub", [number(x, 1 / 30), Op("mul", [inverse, number(x, 1 / 42)])])
    inner = Op("sub", [number(x, 1 / 6), Op("mul", [inverse, inner])])
    head = Op("add", [number(x, 1), Op("div", [number(x, 1), Op("mul", [number(x, 2), x])])])
    tail = Op("div", [Op("add", [head, Op("mul", [inverse, inner])]), x])
    result = Op("add", [result, tail])
    return Op("where", [low, Op("neg", [result]), result])


def _of_order(order: int) -> Callable[[Value], Value]:
    """Of two and more: by sums of inverse powers, in f64."""
    factorial = float(math.factorial(order))

    def compute(x: Value) -> Value:
        found = cast(zeta(order + 1, cast(x, DType.f64)), x.dtype)
        return Op("mul", [number(x, factorial if order % 2 else -factorial), found])

    return compute


lowers("digamma")(of_floats(_digamma))

_MOST = 30
"""Orders up to which the first terms of a sum are what counts."""


@lowers("polygamma")
def polygamma(ctx: LoweringContext, order: int, x: TensorExpr) -> Lowered:
    if not 0 <= order <= _MOST:
        return None
    compute = (_digamma, _trigamma)[order] if order < 2 else _of_order(order)
    return elementwise(ctx, [x], compute, Promotion.INT_TO_FLOAT)
