"""Python classes that stand for C classes while tracing.

An instance in the trace is an object of the twin, whose Python is followed like any other;
for the program its class is the C class, and where it escapes it is made as one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plait_bytecode_tracer.variables import Remake, Variable


@dataclass(frozen=True, slots=True)
class Twin:
    """What a twin stands for."""

    kind: type
    again: Callable[[dict[str, Variable]], Remake]
    """How to make the real object, by the twin's attributes."""


TWINS: dict[type, Twin] = {}
"""By the Python class."""


class ComparisonKey:
    """What `functools.cmp_to_key` makes of an object: it compares by a function."""

    __slots__ = ("_compare", "obj")
    __hash__ = None  # type: ignore[assignment]  # as of the original

    def __init__(self, compare: Callable[[Any, Any], Any], obj: Any) -> None:
        self._compare = compare
        self.obj = obj

    def __lt__(self, other: Any) -> Any:
        return self._compare(self.obj, other.obj) < 0

    def __gt__(self, other: Any) -> Any:
        return self._compare(self.obj, other.obj) > 0

    def __eq__(self, other: Any) -> Any:
        return self._compare(self.obj, other.obj) == 0

    def __le__(self, other: Any) -> Any:
        return self._compare(self.obj, other.obj) <= 0

    def __ge__(self, other: Any) -> Any:
        return self._compare(self.obj, other.obj) >= 0


def _key(compare: Callable[[Any, Any], Any], obj: Any) -> Any:
    return functools.cmp_to_key(compare)(obj)


TWINS[ComparisonKey] = Twin(
    type(functools.cmp_to_key(int.__sub__)),
    lambda own: Remake(_key, [own["_compare"], own["obj"]]),
)
