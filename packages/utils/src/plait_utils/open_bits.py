"""Python's operators on the bits of ints, as arithmetic of symbolic ints.

Ints have as many bits as they need, negative ones endlessly many ones before them: so shifts are
products and floored quotients, and some bits in a row are a remainder of a quotient.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import SymInt

_MOST_PLACES = 62
"""By how many places a symbolic int is shifted."""
_MOST_RUNS = 4
"""How many runs of bits are taken out one by one."""


def shifted_left(number: Any, places: Any) -> Any:
    """`number << places`."""
    if type(places) is not int or not 0 <= places <= _MOST_PLACES:
        return NotImplemented
    return number * 2**places


def shifted_right(number: Any, places: Any) -> Any:
    """`number >> places`."""
    if type(places) is not int or not 0 <= places <= _MOST_PLACES:
        return NotImplemented
    return number // 2**places


def inverted(number: Any) -> Any:
    """`~number`."""
    return -number - 1


def bits_of_both(one: Any, other: Any) -> Any:
    """`one & other`, where one of them is known."""
    number, mask = (other, one) if type(one) is int else (one, other)
    if type(mask) is not int:
        return NotImplemented
    if mask < 0:
        rest = bits_of_both(number, ~mask)
        return rest if rest is NotImplemented else number - rest
    runs = list(_runs(mask))
    if len(runs) > _MOST_RUNS or mask >> _MOST_PLACES:
        return NotImplemented
    parts = [number // 2**first % 2 ** (last - first) * 2**first for first, last in runs]
    return sum(parts[1:], parts[0]) if parts else 0


def bits_of_either(one: Any, other: Any) -> Any:
    """`one | other`, where one of them is known."""
    both = bits_of_both(one, other)
    return both if both is NotImplemented else one + other - both


def bits_of_one(one: Any, other: Any) -> Any:
    """`one ^ other`, where one of them is known."""
    both = bits_of_both(one, other)
    return both if both is NotImplemented else one + other - 2 * both


def _runs(mask: int) -> Iterator[tuple[int, int]]:
    """The runs of ones in a number: where each begins, and the place behind it."""
    first = 0
    while mask >> first:
        first += ((mask >> first) & -(mask >> first)).bit_length() - 1
        rest = ~(mask >> first)
        last = first + (rest & -rest).bit_length() - 1
        yield first, last
        first = last


def _of_ints(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives `NotImplemented` for what are no ints, one of them symbolic."""

    @functools.wraps(function)
    def compute(*numbers: Any) -> Any:
        kinds = set(map(type, numbers))
        return function(*numbers) if SymInt in kinds <= {int, SymInt} else NotImplemented

    return compute


BITS: Mapping[Any, Callable[..., Any]] = {
    operator.lshift: _of_ints(shifted_left),
    operator.rshift: _of_ints(shifted_right),
    operator.invert: _of_ints(inverted),
    operator.and_: _of_ints(bits_of_both),
    operator.or_: _of_ints(bits_of_either),
    operator.xor: _of_ints(bits_of_one),
}
"""By operator; each gives `NotImplemented` for what it does not know."""
