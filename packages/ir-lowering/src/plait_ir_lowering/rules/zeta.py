"""Hurwitz's zeta function of a whole order: the sum of (x + k) to the -order, k from 0 on."""

from __future__ import annotations

import math
from fractions import Fraction

from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.rules.formulas import (
    add,
    div,
    is_below,
    mul,
    number,
    power_series,
    sub,
    where,
)

_SUMMED = 9
"""Terms that are summed one by one, as in ATen, which takes the formula from Cephes."""
_EULER_MACLAURIN = (
    *(12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10),
    *(-2.950130727918164224e12, 1.1646782814350067249e14, -4.5979787224074726105e15),
    *(1.8152105401943546773e17, -7.1661652561756670113e18),
)


def zeta(order: int, x: Value) -> Value:
    """For orders of two and more, and an x of f64.

    Below zero ATen steps up to zero; there the sum over all whole k, which is a polynomial of a
    cotangent, less that of the terms before.
    """
    negative = is_below(x, 0)
    positive = where(negative, sub(number(x, 1), x), x)
    found = _of_positive(order, positive)
    before = sub(_over_all(order, x), found) if order % 2 == 0 else add(_over_all(order, x), found)
    is_pole = Op("logical_and", [Op("le", [x, number(x, 0)]), Op("eq", [x, Op("floor", [x])])])
    return where(is_pole, number(x, math.inf), where(negative, before, found))


def _of_positive(order: int, x: Value) -> Value:
    term = _inverse_power(x, order)
    total, last = term, x
    for _ in range(_SUMMED):
        last = add(last, number(x, 1))
        term = _inverse_power(last, order)
        total = add(total, term)
    rest = div(mul(term, last), number(x, order - 1))
    total = sub(add(total, rest), mul(number(x, 0.5), term))
    factor, coefficients = float(order), []
    for place, divisor in enumerate(_EULER_MACLAURIN):
        coefficients.append(factor / divisor)
        factor *= (order + 2 * place + 1) * (order + 2 * place + 2)
    inverse = div(number(x, 1), last)
    series = power_series(mul(inverse, inverse), coefficients[::-1])
    return add(total, mul(mul(term, inverse), series))


def _inverse_power(x: Value, order: int) -> Value:
    """By squaring."""
    square, found = div(number(x, 1), x), None
    while order:
        if order % 2:
            found = square if found is None else mul(found, square)
        square, order = mul(square, square), order // 2
    assert found is not None, "an order of zero"
    return found


def _over_all(order: int, x: Value) -> Value:
    """The sum over all whole k, by derivatives of pi cot(pi x)."""
    part = sub(x, Op("round", [x]))
    sine = Op("sin", [mul(part, number(x, math.pi))])
    beside = sub(number(x, 0.5), Op("abs", [part]))  # the cosine's zeros are exact
    cotangent = div(Op("sin", [mul(beside, number(x, math.pi))]), sine)
    derivative = [Fraction(1), Fraction(0)]  # of the cotangent's powers, the highest first
    for each in range(1, order):
        degree = len(derivative) - 1
        slopes = [(degree - n) * c for n, c in enumerate(derivative[:-1])]
        raised = [*slopes, Fraction(0), Fraction(0)]
        for n, slope in enumerate(slopes):
            raised[n + 2] += slope
        derivative = [slope / each for slope in raised]
    scale = math.pi**order
    return power_series(cotangent, [float(each) * scale for each in derivative])
