"""Whether two results are the same: types, structure, and the values of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


def difference(
    actual: Any, expected: Any, place: str = "result", *, exact: bool = False
) -> str | None:
    """Where two results first differ, in words; None if they are the same.

    Floating-point tensors may differ as `torch.testing.assert_close` allows by default,
    unless `exact`.
    """
    return _Comparison(exact).difference(actual, expected, place)


@dataclass(slots=True)
class _Comparison:
    exact: bool
    seen: set[tuple[int, int]] = field(default_factory=set)

    def difference(self, actual: Any, expected: Any, place: str) -> str | None:
        if type(actual) is not type(expected):
            return f"{place}: {type(actual).__name__} instead of {type(expected).__name__}"
        if (id(actual), id(expected)) in self.seen:
            return None
        self.seen.add((id(actual), id(expected)))
        if isinstance(expected, torch.Tensor):
            return self._tensors(actual, expected, place)
        if isinstance(expected, Mapping):
            if list(actual) != list(expected):
                return f"{place}: keys {list(actual)} instead of {list(expected)}"
            parts = [(f"{place}[{key!r}]", actual[key], expected[key]) for key in expected]
        elif isinstance(expected, list | tuple):
            if len(actual) != len(expected):
                return f"{place}: length {len(actual)} instead of {len(expected)}"
            parts = [
                (f"{place}[{n}]", a, e)
                for n, (a, e) in enumerate(zip(actual, expected, strict=True))
            ]
        elif dataclasses.is_dataclass(expected) and not isinstance(expected, type):
            names = [field.name for field in dataclasses.fields(expected)]
            parts = [(f"{place}.{n}", getattr(actual, n), getattr(expected, n)) for n in names]
        elif isinstance(expected, int | float | str | bytes | None):
            same = actual == expected or (actual != actual and expected != expected)
            return None if same else f"{place}: {actual!r} instead of {expected!r}"
        elif type(expected).__module__.startswith("transformers") and hasattr(expected, "__dict__"):
            parts = [(place, vars(actual), vars(expected))]
        else:
            return None
        for name, one, other in parts:
            found = self.difference(one, other, name)
            if found is not None:
                return found
        return None

    def _tensors(self, actual: torch.Tensor, expected: torch.Tensor, place: str) -> str | None:
        for attribute in ("shape", "dtype", "device", "requires_grad"):
            one, other = getattr(actual, attribute), getattr(expected, attribute)
            if one != other:
                return f"{place}: {attribute} {one} instead of {other}"
        bound = 0.0 if self.exact else None
        try:
            torch.testing.assert_close(actual, expected, rtol=bound, atol=bound, equal_nan=True)
        except AssertionError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            return f"{place}: " + "; ".join(lines[:3])
        return None
