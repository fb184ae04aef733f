"""Where functions of numbers are defined: what holds of their arguments when they do not raise.

The bounds are not tight: outside of them the arguments' values are taken, and guarded.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from plait_utils import dataclass

Condition: TypeAlias = tuple[int, Callable[[Any, Any], bool], int | float]
"""The position of an argument, a comparison, and the bound that it is compared with."""


@dataclass(frozen=True, slots=True)
class Domain:
    """The arguments that a function takes without raising."""

    conditions: tuple[Condition, ...] = ()
    least: int = 1
    most: int = 1
    """How many arguments there may be."""
    is_finite: bool = False
    """Whether floats must be neither infinite nor NaN."""
    is_of_ints: bool = False


_EVERYWHERE = Domain()
_OF_TWO = Domain(least=2, most=2)
_FINITE = Domain(is_finite=True)
_REMAINDER = Domain(((1, operator.ne, 0),), least=2, most=2, is_finite=True)
_WITHIN_ONE = Domain(((0, operator.ge, -1), (0, operator.le, 1)))
_GROWING = Domain(((0, operator.le, 700),))
_GROWING_BOTH_WAYS = Domain(((0, operator.le, 700), (0, operator.ge, -700)))
_CHOICES = Domain(
    ((0, operator.ge, 0), (1, operator.ge, 0), (0, operator.le, 4096)),
    least=2,
    most=2,
    is_of_ints=True,
)
_POSITIVE = Domain(((0, operator.gt, 0),))
_NOT_NEGATIVE = Domain(((0, operator.ge, 0),))
_INT = Domain(is_of_ints=True)

DOMAINS: dict[Any, Domain] = {
    **dict.fromkeys((math.atan, math.tanh, math.asinh, math.erf, math.erfc), _EVERYWHERE),
    **dict.fromkeys((math.degrees, math.radians, math.fabs, math.ulp, math.cbrt), _EVERYWHERE),
    **dict.fromkeys((math.isfinite, math.isnan, math.isinf), _EVERYWHERE),
    **dict.fromkeys((float, bool, abs, hash), _EVERYWHERE),
    **dict.fromkeys((math.atan2, math.copysign, math.nextafter, math.isclose), _OF_TWO),
    math.hypot: Domain(most=4),
    **dict.fromkeys((math.sin, math.cos, math.tan), _FINITE),
    **dict.fromkeys((int, math.floor, math.ceil, math.trunc), _FINITE),
    round: Domain(most=2, is_finite=True),
    **dict.fromkeys((math.fmod, math.remainder), _REMAINDER),
    **dict.fromkeys((math.acos, math.asin), _WITHIN_ONE),
    **dict.fromkeys((math.exp, math.expm1, math.exp2), _GROWING),
    **dict.fromkeys((math.cosh, math.sinh), _GROWING_BOTH_WAYS),
    math.atanh: Domain(((0, operator.gt, -1), (0, operator.lt, 1))),
    math.acosh: Domain(((0, operator.ge, 1),)),
    math.gamma: Domain(((0, operator.ge, 1e-300), (0, operator.le, 170))),
    math.lgamma: Domain(((0, operator.gt, 0), (0, operator.le, 1e300))),
    **dict.fromkeys((math.log2, math.log10), _POSITIVE),
    math.log: Domain(((0, operator.gt, 0), (1, operator.gt, 0), (1, operator.ne, 1)), most=2),
    math.log1p: Domain(((0, operator.gt, -1),)),
    math.sqrt: _NOT_NEGATIVE,
    math.isqrt: Domain(((0, operator.ge, 0),), is_of_ints=True),
    **dict.fromkeys((math.comb, math.perm), _CHOICES),
    **dict.fromkeys((math.gcd, math.lcm), Domain(most=8, is_of_ints=True)),
    **dict.fromkeys((bin, hex, oct, operator.index), _INT),
    chr: Domain(((0, operator.ge, 0), (0, operator.lt, 0x110000)), is_of_ints=True),
}
"""The functions that are known, apart from operators."""


def power_conditions(base: Any, exponent: Any, *, is_float: bool) -> list[Condition] | None:
    """What holds where a power of floats is a float, and does not overflow.

    Of the base and the exponent one is None, which is then not known; None for where there
    is no such condition. With `is_float` the exponent is no int.
    """
    if base is None and exponent is None:
        return None
    if base is None:
        return _of_base(exponent)
    if base < 0 and is_float:
        return None
    size = abs(base)
    if size == 0:
        return [(1, operator.ge, 0)]
    if size == 1 or not math.isfinite(size):
        return [] if size == 1 else None
    limit = 1000 / abs(math.log2(size))
    return [(1, operator.ge, -limit)] if size < 1 else [(1, operator.le, limit)]


def _of_base(exponent: Any) -> list[Condition] | None:
    if not math.isfinite(exponent):
        return None
    if exponent == 0:
        return []
    bound = 2.0 ** min(1000 / abs(exponent), 1000)
    if exponent > 0:
        return [(0, operator.ge, 0), (0, operator.le, bound)]
    return [(0, operator.gt, 0), (0, operator.ge, 1 / bound), (0, operator.le, 2.0**1000)]


def opposite(conditions: list[Condition]) -> list[Condition]:
    """What holds of the argument where its negation meets the conditions."""
    turned = {operator.ge: operator.le, operator.le: operator.ge, operator.gt: operator.lt}
    return [(place, turned[compare], -bound) for place, compare, bound in conditions]
