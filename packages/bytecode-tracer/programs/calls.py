"""The arguments of the calls of a random program."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from conformance.declare import t
from hypothesis import strategies as st

from programs.grammar import PARAMETERS

Make = Callable[[types.ModuleType], Any]

ARGUMENTS: dict[str, tuple[Make, ...]] = {
    "x": (
        lambda m: t(2, 3),
        lambda m: t(4, 3),
        lambda m: t(2, 3, dtype=torch.float64),
        lambda m: t(1, 3, start=0.5),
        lambda m: t(2, 3, grad=True),
        lambda m: t(3, 2).T,
        lambda m: None,
    ),
    "y": (
        lambda m: t(3),
        lambda m: t(2, 3, start=2),
        lambda m: t(1),
        lambda m: t(3, dtype=torch.int64),
    ),
    "n": (lambda m: 2, lambda m: 3, lambda m: 0, lambda m: -1, lambda m: True, lambda m: 1.5),
    "flag": (lambda m: True, lambda m: False, lambda m: None, lambda m: 1),
    "items": (
        lambda m: [t(3), t(2, 3)],
        lambda m: [t(2, 3)],
        lambda m: [],
        lambda m: _twice(t(3)),
        lambda m: [t(3), t(3), t(2, 1)],
    ),
    "sizes": (lambda m: [1, 2], lambda m: [2], lambda m: [], lambda m: [3, 1, 2, 1]),
    "named": (
        lambda m: {"a": t(3), "b": t(2, 3)},
        lambda m: {"b": t(3), "a": t(1)},
        lambda m: {"a": t(2, 3)},
        lambda m: {},
    ),
    "box": (
        lambda m: m.Box(t(3), 2),
        lambda m: m.Small(t(3), 1),
        lambda m: m.Box(t(2, 3), 3),
        lambda m: m.Box(1.5, 3),
    ),
    "scale": (lambda m: 0.5, lambda m: 2.0, lambda m: 0.0, lambda m: float("nan")),
    "word": (lambda m: "a", lambda m: "size", lambda m: "", lambda m: "b"),
}
"""The values that each parameter may have; the first is the most usual."""


def _twice(tensor: torch.Tensor) -> list[torch.Tensor]:
    """A list that holds a tensor twice."""
    return [tensor, tensor]


Choice = dict[str, int]
"""Which value each parameter has, by number; the first where it is not named."""


def made(choice: Choice, module: types.ModuleType) -> tuple[Any, ...]:
    """Fresh arguments of one call."""
    return tuple(ARGUMENTS[name][choice.get(name, 0)](module) for name in PARAMETERS)


@st.composite
def _changes(draw: st.DrawFn) -> Choice:
    names = draw(st.lists(st.sampled_from(list(PARAMETERS)), max_size=2, unique=True))
    return {name: draw(st.integers(0, len(ARGUMENTS[name]) - 1)) for name in names}


def calls() -> st.SearchStrategy[list[Choice]]:
    """Successive calls; most differ from the first in one or two arguments."""
    return st.lists(_changes(), min_size=2, max_size=5)
