"""Elements of a tuple at positions that are known before, in one call of C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Picker: TypeAlias = Callable[[tuple[T, ...]], tuple[T, ...]]


def picker(positions: Sequence[int]) -> Picker[T]:
    """What takes the elements at these positions, in this order, as a tuple."""
    if not positions:
        return lambda values: ()
    if len(positions) == 1:  # itemgetter would return the element alone
        (position,) = positions
        return lambda values: (values[position],)
    return itemgetter(*positions)
