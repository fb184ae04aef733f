"""Python twins of small C classes and functions of the standard library.

Written for tracing, not to be used: `twins.registry` says what each class stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

IS_TWIN = True
"""Frames of this module's code are never resumed: the real object has no such code."""


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


class SimpleNamespace:
    """`types.SimpleNamespace`."""

    __hash__ = None  # type: ignore[assignment]  # as of the original

    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)

    def __eq__(self, other: Any) -> Any:
        if isinstance(other, SimpleNamespace):
            return self.__dict__ == other.__dict__
        return NotImplemented

    def __repr__(self) -> str:
        parts = [f"{name}={value!r}" for name, value in self.__dict__.items()]
        return f"namespace({', '.join(parts)})"


def count_elements(mapping: Any, iterable: Iterable[Any]) -> None:
    """`collections._count_elements`, which `Counter` counts with."""
    get = mapping.get
    for element in iterable:
        mapping[element] = get(element, 0) + 1
