"""Functions of the normal distribution: inverses, logarithms and scaled tails."""

from __future__ import annotations

import math

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion

from plait_ir_lowering.context import LoweringContext
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.elementwise import computation_dtype, elementwise
from plait_ir_lowering.rules.formulas import (
    add,
    div,
    in_double,
    is_below,
    is_equal,
    mul,
    neg,
    number,
    of_floats,
    power_series,
    sub,
    where,
)
from plait_ir_lowering.tensors import TensorExpr

_FAR = 10.0
"""From here on the series of erfcx for large arguments is exact to f64 in twelve terms."""


def _erfcx(x: Value) -> Value:
    """exp(x²) erfc(x), in f64: ATen looks up one of a hundred polynomials."""
    near = mul(Op("exp", [mul(x, x)]), Op("erfc", [x]))
    inverse = div(number(x, -0.5), mul(x, x))
    odd = [1.0]
    for each in range(1, 13):
        odd.append(odd[-1] * (2 * each - 1))
    far = div(power_series(inverse, odd[::-1]), mul(x, number(x, math.sqrt(math.pi))))
    return where(is_below(x, _FAR), near, far)


lowers("special_erfcx")(of_floats(in_double(_erfcx)))


def _log_ndtr(x: Value) -> Value:
    t = mul(x, number(x, math.sqrt(0.5)))
    tail = sub(Op("log", [mul(_erfcx(neg(t)), number(x, 0.5))]), mul(t, t))
    rest = Op("log1p", [mul(Op("erfc", [t]), number(x, -0.5))])
    return where(is_below(x, -1), tail, rest)


lowers("special_log_ndtr")(of_floats(in_double(_log_ndtr)))

_MIDDLE_TOP = (
    *(-5.99633501014107895267e1, 9.80010754185999661536e1, -5.66762857469070293439e1),
    *(1.39312609387279679503e1, -1.23916583867381258016e0),
)
_MIDDLE_BOTTOM = (
    *(1.0, 1.95448858338141759834e0, 4.67627912898881538453e0, 8.63602421390890590575e1),
    *(-2.25462687854119370527e2, 2.00260212380060660359e2, -8.20372256168333339912e1),
    *(1.59056225126211695515e1, -1.18331621121330003142e0),
)
_NEAR_TOP = (
    *(4.05544892305962419923e0, 3.15251094599893866154e1, 5.71628192246421288162e1),
    *(4.40805073893200834700e1, 1.46849561928858024014e1, 2.18663306850790267539e0),
    *(-1.40256079171354495875e-1, -3.50424626827848203418e-2, -8.57456785154685413611e-4),
)
_NEAR_BOTTOM = (
    *(1.0, 1.57799883256466749731e1, 4.53907635128879210584e1, 4.13172038254672030440e1),
    *(1.50425385692907503408e1, 2.50464946208309415979e0, -1.42182922854787788574e-1),
    *(-3.80806407691578277194e-2, -9.33259480895457427372e-4),
)
_TAIL_TOP = (
    *(3.23774891776946035970e0, 6.91522889068984211695e0, 3.93881025292474443415e0),
    *(1.33303460815807542389e0, 2.01485389549179081538e-1, 1.23716634817820021358e-2),
    *(3.01581553508235416007e-4, 2.65806974686737550832e-6, 6.23974539184983293730e-9),
)
_TAIL_BOTTOM = (
    *(1.0, 6.02427039364742014255e0, 3.67983563856160859403e0, 1.37702099489081330271e0),
    *(2.16236993594496635890e-1, 1.34204006088543189037e-2, 3.28014464682127739104e-4),
    *(2.89247864745380683936e-6, 6.79019408009981274425e-9),
)
_NEAR = 0.13533528323661269189
"""exp(-2): the middle lies between this and 1 less this."""


def _ndtri(given: Value) -> Value:
    """Where the distribution reaches `given`: ATen's approximations, which are of Cephes."""
    is_upper = Op("gt", [given, number(given, 1 - _NEAR)])
    y = where(is_upper, sub(number(given, 1), given), given)
    centred = sub(y, number(y, 0.5))
    square = mul(centred, centred)
    ratio = mul(square, power_series(square, _MIDDLE_TOP))
    ratio = div(ratio, power_series(square, _MIDDLE_BOTTOM))
    middle = mul(add(centred, mul(centred, ratio)), number(y, 2.50662827463100050242))
    x = Op("sqrt", [mul(number(y, -2), Op("log", [y]))])
    first = sub(x, div(Op("log", [x]), x))
    z = div(number(x, 1), x)
    near = div(mul(z, power_series(z, _NEAR_TOP)), power_series(z, _NEAR_BOTTOM))
    tail = div(mul(z, power_series(z, _TAIL_TOP)), power_series(z, _TAIL_BOTTOM))
    found = sub(first, where(is_below(x, 8), near, tail))
    found = where(is_upper, found, neg(found))
    found = where(Op("gt", [y, number(y, _NEAR)]), middle, found)
    found = where(is_equal(given, 0), number(given, -math.inf), found)
    return where(is_equal(given, 1), number(given, math.inf), found)


lowers("special_ndtri")(of_floats(_ndtri))

_ERFINV_NEAR = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_ERFINV_FAR = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


def _erfinv(y: Value) -> Value:
    """For f32, of M. Giles, Approximating the erfinv function, GPU Computing Gems 2 (2011)."""
    one = number(y, 1)
    w = neg(Op("log", [mul(sub(one, y), add(one, y))]))
    near = power_series(sub(w, number(w, 2.5)), _ERFINV_NEAR)
    far = power_series(sub(Op("sqrt", [w]), number(w, 3)), _ERFINV_FAR)
    found = mul(where(is_below(w, 5), near, far), y)
    end = mul(y, number(y, math.inf))
    return where(is_equal(Op("abs", [y]), 1), end, found)


@lowers("erfinv")
def erfinv(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    """ATen's own vectors are better in f64."""
    if computation_dtype([x], Promotion.INT_TO_FLOAT) is not DType.f32:
        return None
    return elementwise(ctx, [x], _erfinv, Promotion.INT_TO_FLOAT)
