"""Sizes that Python rounds from floats, `int(1.7 * n)`, as quotients of integers.

A float is near a fraction of small integers. Products with the two, rounded, are compared for all
sizes up to a bound, and the environment of the sizes notes that they are within it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

_MOST = 1 << 20
"""Up to which size products are compared."""
_EXACT = 1 << 52
"""Up to here a quotient of two integers, in float64, rounds to no integer that it is not."""
_MOST_PARTS = 1 << 20
"""Of how many parts the fraction may be: products with sizes stay far within 64 bits."""

ROUNDINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "TruncToInt": torch.trunc,
    "FloorToInt": torch.floor,
    "CeilToInt": torch.ceil,
}
"""What rounds to an integer, by the name of torch's function of sympy."""


def by_division(expr: Any, environment: Any) -> Any:
    """The rounded product as a quotient of integers; itself where that is not known to be it."""
    from torch.utils._sympy.functions import FloorDiv

    name = expr.func.__name__
    found = _fraction_in(expr.args[0], name)
    if found is None:
        return expr
    size, fraction, most = found
    within = environment.evaluate_expr((size >= 0) & (size <= most)) if most else False
    if not bool(within):
        return expr
    return FloorDiv(size * fraction.numerator + _up(fraction, name), fraction.denominator)


def _fraction_in(expr: Any, name: str) -> tuple[Any, Fraction, int] | None:
    """An integer, the fraction that it is multiplied by, and up to which one that is right.

    None for other floats than products and quotients of one.
    """
    if expr.func.__name__ == "IntTrueDiv" and expr.args[1].is_Integer and expr.args[1] > 0:
        return expr.args[0], Fraction(1, int(expr.args[1])), _EXACT
    if not expr.is_Mul or len(expr.args) != 2:
        return None
    number, size = expr.args
    if not number.is_Float or size.func.__name__ != "ToFloat" or not number > 0:
        return None
    return size.args[0], *fraction_of(float(number), name)


def _up(fraction: Fraction, name: str) -> int:
    """What makes of the quotient that is rounded down the one that is rounded as `name` says."""
    return fraction.denominator - 1 if name == "CeilToInt" else 0


@lru_cache(maxsize=256)
def fraction_of(number: float, name: str) -> tuple[Fraction, int]:
    """The fraction near a float, and up to which integer products with both round to the same."""
    fraction = Fraction(number).limit_denominator(_MOST_PARTS)
    sizes = torch.arange(_MOST + 1)
    exact = (sizes * fraction.numerator + _up(fraction, name)) // fraction.denominator
    differs = ROUNDINGS[name](sizes.to(torch.float64) * number).to(torch.int64) != exact
    first = int(differs.nonzero()[0]) if bool(differs.any()) else len(sizes)
    return fraction, first - 1
