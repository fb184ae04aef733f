"""The Airy function Ai, by the approximations of ATen's kernel, which are of Cephes."""

from __future__ import annotations

import math

from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import lowers
from plait_ir_lowering.rules.formulas import (
    add,
    div,
    is_below,
    mul,
    neg,
    number,
    of_floats,
    power_series,
    sub,
    where,
)

_TOP = (
    *(3.46538101525629032477e-01, 1.20075952739645805542e01, 7.62796053615234516538e01),
    *(1.68089224934630576269e02, 1.59756391350164413639e02, 7.05360906840444183113e01),
    *(1.40264691163389668864e01, 9.99999999999999995305e-01),
)
_BOTTOM = (
    *(5.67594532638770212846e-01, 1.47562562584847203173e01, 8.45138970141474626562e01),
    *(1.77318088145400459522e02, 1.64234692871529701831e02, 7.14778400825575695274e01),
    *(1.40959135607834029598e01, 1.00000000000000000470e00),
)
_SINE_TOP = (
    *(-1.31696323418331795333e-01, -6.26456544431912369773e-01, -6.93158036036933542233e-01),
    *(-2.79779981545119124951e-01, -4.91900132609500318020e-02, -4.06265923594885404393e-03),
    *(-1.59276496239262096340e-04, -2.77649108155232920844e-06, -1.67787698489114633780e-08),
)
_SINE_BOTTOM = (
    *(1.33560420706553243746e01, 3.26825032795224613948e01, 2.67367040941499554804e01),
    *(9.18707402907259625840e00, 1.47529146771666414581e00, 1.15687173795188044134e-01),
    *(4.40291641615211203805e-03, 7.54720348287414296618e-05, 4.51850092970580378464e-07),
)
_COSINE_TOP = (
    *(1.97339932091685679179e-02, 3.91103029615688277255e-01, 1.06579897599595591108e00),
    *(9.39169229816650230044e-01, 3.51465656105547619242e-01, 6.33888919628925490927e-02),
    *(5.85804113048388458567e-03, 2.82851600836737019778e-04, 6.98793669997260967291e-06),
    *(8.11789239554389293311e-08, 3.41551784765923618484e-10),
)
_COSINE_BOTTOM = (
    *(9.30892908077441974853e00, 1.98352928718312140417e01, 1.55646628932864612953e01),
    *(5.47686069422975497931e00, 9.54293611618961883998e-01, 8.64580826352392193095e-02),
    *(4.12656523824222607191e-03, 1.01259085116509135510e-04, 1.17166733214413521882e-06),
    4.91834570062930015649e-09,
)
_ROOT = 5.64189583547756286948e-01
"""Of one over pi."""
_EDGE = 2.09
"""Up to this distance from zero, a power series."""
_TERMS = 12
"""Of that series, after which f64 does not change."""


def _ratio(x: Value, top: tuple[float, ...], bottom: tuple[float, ...]) -> Value:
    return div(power_series(x, top), power_series(x, bottom))


def _exponent(x: Value) -> Value:
    """Two thirds of x to the 3/2."""
    return div(mul(mul(number(x, 2), x), Op("sqrt", [x])), number(x, 3))


def _oscillating(x: Value) -> Value:
    """Of -x for large x."""
    exponent = _exponent(x)
    z = div(number(x, 1), exponent)
    square = mul(z, z)
    angle = add(exponent, number(x, math.pi / 4))
    in_phase = add(number(x, 1), mul(square, _ratio(square, _SINE_TOP, _SINE_BOTTOM)))
    other = mul(z, _ratio(square, _COSINE_TOP, _COSINE_BOTTOM))
    wave = sub(mul(Op("sin", [angle]), in_phase), mul(Op("cos", [angle]), other))
    return mul(div(number(x, _ROOT), Op("sqrt", [Op("sqrt", [x])])), wave)


def _falling(x: Value) -> Value:
    exponent = _exponent(x)
    ratio = _ratio(div(number(x, 1), exponent), _TOP, _BOTTOM)
    root = Op("sqrt", [Op("sqrt", [x])])
    scale = mul(mul(number(x, 2), root), Op("exp", [exponent]))
    return div(mul(number(x, _ROOT), ratio), scale)


def _near(x: Value) -> Value:
    cube = mul(mul(x, x), x)
    even, odd = number(x, 1), x
    f, g = even, odd
    for k in range(2, 3 * _TERMS, 3):
        even = div(mul(even, cube), number(x, k * (k + 1)))
        odd = div(mul(odd, cube), number(x, (k + 1) * (k + 2)))
        f, g = add(f, even), add(g, odd)
    f = mul(number(x, 0.355028053887817239260), f)
    return sub(f, mul(number(x, 0.258819403792806798405), g))


def _airy(x: Value) -> Value:
    found = where(is_below(x, -_EDGE), _oscillating(neg(x)), _near(x))
    found = where(Op("ge", [x, number(x, _EDGE)]), _falling(x), found)
    found = where(Op("gt", [x, number(x, 103.892)]), number(x, 0), found)
    return where(Op("isinf", [x]), number(x, math.nan), found)


lowers("special_airy_ai")(of_floats(_airy))
