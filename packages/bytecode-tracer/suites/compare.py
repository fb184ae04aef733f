"""Whether two results are the same: types, structure, and tensors bit by bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch


def difference(actual: Any, expected: Any, place: str = "result") -> str | None:
    """Where two results first differ, in words; None if they are the same."""
    return _difference(actual, expected, place, set())


def _difference(actual: Any, expected: Any, place: str, seen: set[tuple[int, int]]) -> str | None:
    if type(actual) is not type(expected):
        return f"{place}: {type(actual).__name__} instead of {type(expected).__name__}"
    if (id(actual), id(expected)) in seen:
        return None
    seen.add((id(actual), id(expected)))
    if isinstance(expected, torch.Tensor):
        return _tensors(actual, expected, place)
    if isinstance(expected, Mapping):
        if list(actual) != list(expected):
            return f"{place}: keys {list(actual)} instead of {list(expected)}"
        parts = [(f"{place}[{key!r}]", actual[key], expected[key]) for key in expected]
    elif isinstance(expected, list | tuple):
        if len(actual) != len(expected):
            return f"{place}: length {len(actual)} instead of {len(expected)}"
        parts = [(f"{place}[{n}]", a, e) for n, (a, e) in enumerate(zip(actual, expected))]
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
        found = _difference(one, other, name, seen)
        if found is not None:
            return found
    return None


def _tensors(actual: torch.Tensor, expected: torch.Tensor, place: str) -> str | None:
    for attribute in ("shape", "dtype", "device", "requires_grad"):
        one, other = getattr(actual, attribute), getattr(expected, attribute)
        if one != other:
            return f"{place}: {attribute} {one} instead of {other}"
    try:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"{place}: " + "; ".join(lines[:3])
    return None
