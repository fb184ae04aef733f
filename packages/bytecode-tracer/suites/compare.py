"""Whether two results are the same: types, structure, and the values of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


def difference(
    actual: Any,
    expected: Any,
    place: str = "result",
    *,
    exact: bool = False,
    values: bool = True,
) -> str | None:
    """Where two results first differ, in words; None if they are the same.

    Floating-point tensors may differ as `torch.testing.assert_close` allows by default,
    unless `exact`; without `values` only what tensors are like is compared.
    """
    return _Comparison(exact, values).difference(actual, expected, place)


def parts_of(value: Any) -> dict[str, Any]:
    """What a value holds, by how each is reached from it; nothing of what is not looked into."""
    if isinstance(value, Mapping):
        return {f"[{key!r}]": each for key, each in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{number}]": each for number, each in enumerate(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f".{field.name}": getattr(value, field.name) for field in dataclasses.fields(value)}
    if type(value).__module__.startswith("transformers") and hasattr(value, "__dict__"):
        return {f".{name}": each for name, each in vars(value).items()}
    return {}


def tensors_in(value: Any, place: str = "result") -> dict[str, torch.Tensor]:
    """All tensors of a result, by where they are; what holds them is looked into once."""
    found: dict[str, torch.Tensor] = {}
    seen: dict[int, Any] = {}
    waiting = [(place, value)]
    while waiting:
        at, each = waiting.pop()
        if isinstance(each, torch.Tensor):
            found[at] = each
        elif id(each) not in seen:
            seen[id(each)] = each
            waiting += reversed([(at + name, part) for name, part in parts_of(each).items()])
    return found


@dataclass(slots=True)
class _Comparison:
    exact: bool
    values: bool
    seen: set[tuple[int, int]] = field(default_factory=set)

    def difference(self, actual: Any, expected: Any, place: str) -> str | None:
        if type(actual) is not type(expected):
            return f"{place}: {type(actual).__name__} instead of {type(expected).__name__}"
        if (id(actual), id(expected)) in self.seen:
            return None
        self.seen.add((id(actual), id(expected)))
        if isinstance(expected, torch.Tensor):
            return self._tensors(actual, expected, place)
        if isinstance(expected, int | float | str | bytes | None):
            same = actual == expected or (actual != actual and expected != expected)
            return None if same else f"{place}: {actual!r} instead of {expected!r}"
        ours, theirs = parts_of(actual), parts_of(expected)
        if list(ours) != list(theirs):
            return f"{place}: {', '.join(ours)} instead of {', '.join(theirs)}"
        for name, other in theirs.items():
            found = self.difference(ours[name], other, place + name)
            if found is not None:
                return found
        return None

    def _tensors(self, actual: torch.Tensor, expected: torch.Tensor, place: str) -> str | None:
        for attribute in ("shape", "dtype", "device", "requires_grad"):
            one, other = getattr(actual, attribute), getattr(expected, attribute)
            if one != other:
                return f"{place}: {attribute} {one} instead of {other}"
        if not self.values:
            return None
        bound = 0.0 if self.exact else None
        try:
            torch.testing.assert_close(actual, expected, rtol=bound, atol=bound, equal_nan=True)
        except AssertionError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            return f"{place}: " + "; ".join(lines[:3])
        return None
