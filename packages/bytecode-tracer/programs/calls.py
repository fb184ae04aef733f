"""The arguments of the calls of a random program."""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Callable
from typing import Any

import torch
from conformance.declare import t
from hypothesis import strategies as st

from programs.grammar import PARAMETERS

Make = Callable[[types.ModuleType], Any]
Change = Callable[[types.ModuleType, dict[str, Any]], object]

ARGUMENTS: dict[str, tuple[Make, ...]] = {
    "x": (
        lambda m: t(2, 3),
        lambda m: t(4, 3),
        lambda m: t(2, 3, dtype=torch.float64),
        lambda m: t(1, 3, start=0.5),
        lambda m: t(2, 3, grad=True),
        lambda m: t(3, 2).T,
        lambda m: None,
        lambda m: t(2, 6)[:, ::2],
        lambda m: t(2, 1).expand(2, 3),
        lambda m: t(3, 3)[1:],
        lambda m: torch.nn.Parameter(t(2, 3)),
        lambda m: t(0, 3),
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
        lambda m: m.Rich(t(3), 2),
    ),
    "rich": (
        lambda m: m.Rich(t(3), 3),
        lambda m: m.Deep(t(3), 1),
        lambda m: m.Rich(t(2, 3), 2.0),
        lambda m: m.Rich(1.5, 2),
    ),
    "scale": (lambda m: 0.5, lambda m: 2.0, lambda m: 0.0, lambda m: float("nan")),
    "word": (lambda m: "a", lambda m: "size", lambda m: "", lambda m: "b", lambda m: m.Text("a")),
    "net": (lambda m: m.NET, lambda m: m.Net(), lambda m: m.NET.eval(), lambda m: m.Other()),
    "codes": (
        lambda m: {"a": 1, "b": 2},
        lambda m: {"b": 2, "a": 1},
        lambda m: {"a": True, 1: 2},
        lambda m: {1.0: 2, "a": -0},
        lambda m: collections.OrderedDict(b=1),
        lambda m: {},
    ),
    "marks": (lambda m: {1, 2}, lambda m: {2}, lambda m: set(), lambda m: {8, 0, 1}),
}
"""The values that each parameter may have; the first is the most usual."""

Values = dict[str, Any]


def _nothing(module: types.ModuleType, values: Values) -> None:
    pass


def _set(path: str, value: Any) -> Change:
    *owners, name = path.split(".")

    def change(module: types.ModuleType, values: Values) -> None:
        target: Any = module
        for owner in owners:
            target = getattr(target, owner)
        setattr(target, name, value(module) if isinstance(value, types.LambdaType) else value)

    return change


CHANGES: tuple[Change, ...] = (
    _nothing,
    # What the program has as globals and classes.
    *(_set("COUNT", 5), _set("COUNT", 3.0), _set("COUNT", True), _set("Box.shared", 3)),
    _set("Rich.__add__", lambda m: lambda self, other: other),
    _set("Rich.shared", 0),
    _set("Small.__call__", lambda m: lambda self, t, n=1: t - n),
    _set("Box.double", lambda m: 7),
    _set("refuse", lambda m: lambda n: n + 1),
    _set("kept.__defaults__", lambda m: ([1, 2],)),
    _set("count.__code__", lambda m: m.other_count.__code__),
    _set("len", lambda m: lambda value: 2),
    _set("rows", lambda m: m.chained),
    _set("TABLE", lambda m: {"b": 1.0, "a": 2}),
    _set("Deep.__bases__", lambda m: (m.Rich,)),
    # Modules.
    *(_set("NET.factor", 3), _set("NET.training", False), _set("Net.factor", 5)),
    _set("NET.forward", lambda m: lambda t, n=1: t * 3),
    _set("NET.layer.forward", lambda m: lambda t: t + 1),
    lambda m, values: m.NET.layer.register_forward_hook(m.doubled),
    lambda m, values: m.NET.layer.weight.data.mul_(2),
    lambda m, values: m.NET.double(),
    lambda m, values: m.NET.requires_grad_(False),
    lambda m, values: m.NET.rest.append(torch.nn.Sigmoid()),
    _set("NET.layer", lambda m: torch.nn.Identity()),
    # Tensors that are one, or share memory.
    lambda m, values: values.update(y=values["x"]),
    lambda m, values: values.update(y=values["x"].view(-1)),
    lambda m, values: values.update(y=values["x"][0]),
    lambda m, values: values["items"].append(values["x"]),
    lambda m, values: values["named"].update(a=values["x"], b=values["y"]),
    lambda m, values: setattr(values["box"], "value", values["y"]),
    lambda m, values: values.update(items=[values["x"], *values["x"].unbind()]),
    lambda m, values: values["box"].__dict__.update(value=values["x"].mT, extra=1),
    lambda m, values: values.update(x=m.NET.layer.weight),
    lambda m, values: values.update(codes=m.TABLE),
    lambda m, values: values["sizes"].append(values["n"]),
)
"""What may happen before a call, to the module of the program or to the arguments."""


def _twice(tensor: torch.Tensor) -> list[torch.Tensor]:
    """A list that holds a tensor twice."""
    return [tensor, tensor]


Choice = dict[str, int]
"""Which value each parameter has, by number; the first where it is not named. `before` is a
number of a change."""


def made(choice: Choice, module: types.ModuleType) -> tuple[Any, ...]:
    """Fresh arguments of one call."""
    values = {name: ARGUMENTS[name][choice.get(name, 0)](module) for name in PARAMETERS}
    with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError, IndexError):
        CHANGES[choice.get("before", 0)](module, values)  # may not fit the arguments
    return tuple(values.values())


@st.composite
def _changes(draw: st.DrawFn) -> Choice:
    names = draw(st.lists(st.sampled_from(list(PARAMETERS)), max_size=2, unique=True))
    choice = {name: draw(st.integers(0, len(ARGUMENTS[name]) - 1)) for name in names}
    change = draw(st.integers(-len(CHANGES), len(CHANGES) - 1))
    return {**choice, "before": change} if change > 0 else choice


def calls() -> st.SearchStrategy[list[Choice]]:
    """Successive calls; most differ from the first in one or two arguments."""
    return st.lists(_changes(), min_size=2, max_size=5)
