"""How a case is written: a program, and the argument sets that it is called with."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])
CASES = "__cases__"
"""The name of the list of cases in the globals of a file of cases."""


@dataclass(frozen=True, slots=True)
class Call:
    """An argument set with keywords; a plain tuple will do without."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One program and how to run it. See `case` and `scenario`."""

    topic: str
    name: str
    function: Callable[..., Any]
    sets: Callable[..., Iterable[Any]]
    is_scenario: bool
    then: Callable[[Any], Any] | None
    drive: Callable[..., Any] | None
    traceback: bool
    options: dict[str, Any]
    breaks_meant: bool
    """Whether its topic says `BREAKS_MEANT = True`: a break is what it is about."""

    @property
    def id(self) -> str:
        """`topic/name`, unique in the suite."""
        return f"{self.topic}/{self.name}"


def call(*args: Any, **kwargs: Any) -> Call:
    """An argument set with keyword arguments."""
    return Call(args, kwargs)


def case(
    sets: Callable[[], Iterable[Any]] | None = None,
    *,
    then: Callable[[Any], Any] | None = None,
    drive: Callable[..., Any] | None = None,
    traceback: bool = False,
    **options: Any,
) -> Callable[[F], F]:
    """Declare the decorated function as a program to compile.

    Args:
        sets: makes the argument sets (tuples or `call(...)`), freshly for each side. A
            generator makes each set just before the call, and so may change what the
            program reads between the calls. Left out: tensors of several shapes and dtypes.
        then: applied to each result, uncompiled; it may consume or call it.
        drive: called as `drive(program, *args)` instead of calling the program itself.
        traceback: compare the lines of the traceback in this file, too.
        options: further options of the compiled function, as `fullgraph`.
    """
    return _declare(sets or tensors, False, then, drive, traceback, options)


def scenario(
    sets: Callable[..., Iterable[Any]] | None = None,
    *,
    then: Callable[[Any], Any] | None = None,
    drive: Callable[..., Any] | None = None,
    traceback: bool = False,
    **options: Any,
) -> Callable[[F], F]:
    """Declare the decorated function as one that makes the program to compile.

    It returns a function, method, callable object or `nn.Module`; or a pair of that and
    a state, which is then the argument of `sets`, and compared after each call.
    """
    return _declare(sets or tensors, True, then, drive, traceback, options)


def _declare(
    sets: Callable[..., Iterable[Any]],
    is_scenario: bool,
    then: Callable[[Any], Any] | None,
    drive: Callable[..., Any] | None,
    traceback: bool,
    options: dict[str, Any],
) -> Callable[[F], F]:
    def register(function: F) -> F:
        assert isinstance(function, types.FunctionType)
        namespace = function.__globals__
        topic = str(namespace["__name__"]).rpartition(".")[2]
        made = Case(
            *(topic, function.__name__, function, sets, is_scenario),
            *(then, drive, traceback, options, bool(namespace.get("BREAKS_MEANT"))),
        )
        cases = namespace.setdefault(CASES, {})
        if made.name in cases:
            raise ValueError(f"{topic} has two cases named {made.name}")
        cases[made.name] = made
        return function

    return register


def t(
    *shape: int, dtype: torch.dtype = torch.float32, grad: bool = False, start: float = -1
) -> torch.Tensor:
    """A tensor of the given shape with distinct values: start, start + 1/4, ..."""
    count = torch.Size(shape).numel()
    if dtype.is_floating_point or dtype.is_complex:
        values = (torch.arange(count) / 4 + start).to(dtype)
    elif dtype is torch.bool:
        values = torch.arange(count) % 2 == 0
    else:
        values = (torch.arange(count) + int(start)).to(dtype)
    made = values.reshape(shape)
    return made.requires_grad_() if grad else made


def tensors() -> list[tuple[torch.Tensor, ...]]:
    """One tensor, of changing shape and dtype."""
    double = t(2, 3, dtype=torch.float64)
    return [(t(2, 3),), (t(4, 3),), (double,), (t(2, 3, start=0.5),)]


def shapes(*wanted: tuple[int, ...]) -> Callable[[], list[tuple[torch.Tensor, ...]]]:
    """Sets of one tensor, of each of the shapes."""
    return lambda: [(t(*shape),) for shape in wanted]


def with_x(*values: Any) -> Callable[[], list[tuple[Any, ...]]]:
    """Sets of a 2 by 3 tensor and a fresh copy of each of the values."""
    return lambda: [(t(2, 3), copy.deepcopy(value)) for value in values]


def only(*values: Any) -> Callable[[], list[tuple[Any, ...]]]:
    """Sets of one argument, a fresh copy of each of the values."""
    return lambda: [(copy.deepcopy(value),) for value in values]
