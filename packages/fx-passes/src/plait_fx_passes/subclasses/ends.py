"""Where a flat program makes the wrappers that its arguments stand for, and takes its own apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import torch

from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.subclasses.boundary import GradientKind, Into, expected_kind, out_of
from plait_utils import dataclass
from plait_utils.wrappings import Wrapping, is_plain, is_wrapper, wrapping_of


@dataclass(frozen=True, slots=True)
class Held:
    """How an argument becomes arguments of the flat program.

    ``wrapping`` is None for what is no wrapper; ``kind`` says what its gradient consists of, None
    where it gets none.
    """

    wrapping: Wrapping | None = None
    kind: GradientKind | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """An output that is a wrapper the program makes, of results from ``start`` on."""

    start: int
    wrapping: Wrapping
    kind: GradientKind | None


@dataclass(frozen=True, slots=True)
class Kept:
    """An output that is the caller's own wrapper, by the number of its argument."""

    argument: int


@dataclass(frozen=True, slots=True)
class ViewOf:
    """An output that is a view of the caller's own wrapper, which ``make`` makes of it."""

    argument: int
    make: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Again:
    """An output that is the same object as an earlier one."""

    output: int


@dataclass(frozen=True, slots=True)
class Plain:
    """An output that is a result of the flat program."""

    result: int


@dataclass(frozen=True, slots=True)
class Value:
    """An output that is no tensor."""

    value: object


Output = Made | Kept | ViewOf | Again | Plain | Value


@dataclass(slots=True)
class Layout:
    """How the program's outputs follow from those of the flat one; known once it has run."""

    outputs: list[Output] = field(default_factory=list)
    written: tuple[int, ...] = ()
    """The wrappers among the arguments to which the program writes."""


class Enter(torch.nn.Module):
    """Makes the wrapper of one argument."""

    def __init__(self, argument: Held) -> None:
        super().__init__()
        assert argument.wrapping is not None
        self.wrapping = argument.wrapping
        self.kind = argument.kind

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        held, anchors = given[: self.wrapping.count], given[self.wrapping.count :]
        if self.kind is None:
            return self.wrapping.build(held)
        with torch.enable_grad():
            made: Any = Into.apply
            return cast(
                torch.Tensor, made(self.kind, lambda: self.wrapping.build(held), None, *anchors)
            )


class Leave(torch.nn.Module):
    """Takes the outputs apart; what comes after them are the wrappers that were entered."""

    def __init__(
        self,
        entered: Sequence[tuple[int, Held]],
        views: Mapping[int, tuple[int, Callable[..., Any]]],
    ) -> None:
        super().__init__()
        self.views = views
        self.entered = tuple(entered)
        self.layout: Layout | None = None

    def forward(
        self, outputs: Sequence[object], wrappers: Sequence[torch.Tensor], held: Sequence[Any]
    ) -> tuple[torch.Tensor, ...]:
        layout = Layout(written=self._written(wrappers, held))
        results: list[torch.Tensor] = []
        seen: dict[int, int] = {}
        arguments = {id(each): n for each, (n, _) in zip(wrappers, self.entered, strict=True)}
        for number, value in enumerate(outputs):
            if not isinstance(value, torch.Tensor):
                layout.outputs.append(Value(value))
            elif id(value) in arguments:
                layout.outputs.append(Kept(arguments[id(value)]))
            elif id(value) in seen:
                layout.outputs.append(Again(seen[id(value)]))
            else:
                seen[id(value)] = number
                view = self._view(number, value, wrappers)
                layout.outputs.append(view or _left(value, results))
        self.layout = layout
        return tuple(results)

    def _view(
        self, number: int, value: torch.Tensor, wrappers: Sequence[torch.Tensor]
    ) -> ViewOf | None:
        """How an output is a view of a wrapper that the program is given; None if it is none."""
        if not value._is_view() or not any(value._base is each for each in wrappers):
            return None
        argument, make = self.views.get(number, (-1, None))
        places = [n for n, _ in self.entered]
        if (
            make is None
            or argument not in places
            or wrappers[places.index(argument)] is not value._base
        ):
            raise AtenTraceError("the program returns a view of a tensor subclass that it is given")
        return ViewOf(argument, make)

    def _written(self, wrappers: Sequence[torch.Tensor], held: Sequence[Any]) -> tuple[int, ...]:
        """Which wrappers were written to. Raises AtenTraceError for changes of more than memory."""
        written: list[int] = []
        start = 0
        for value, (number, argument) in zip(wrappers, self.entered, strict=True):
            wrapping = argument.wrapping
            assert wrapping is not None
            stop = start + wrapping.count
            if wrapping_of(value) != wrapping or any(
                one is not two
                for one, two in zip(wrapping.flatten(value), held[start:stop], strict=True)
            ):
                raise AtenTraceError("the program changes what an argument's wrapper holds")
            start = stop
            if _is_followed(value, argument):
                raise AtenTraceError("the program writes to a tensor subclass, under gradients")
            if value._version:
                written.append(number)
        return tuple(written)


def _is_followed(value: torch.Tensor, argument: Held) -> bool:
    """Whether autograd follows what was written to a wrapper."""
    if argument.kind is None:  # as it is made it may require gradients, which nobody asks for
        return value.requires_grad and value._version > 0
    return type(value.grad_fn).__name__ != "IntoBackward"


def _left(value: torch.Tensor, results: list[torch.Tensor]) -> Output:
    start = len(results)
    if not is_wrapper(value):
        if not is_plain(type(value)):
            raise AtenTraceError(f"the program returns a {type(value).__name__}")
        results.append(value)
        return Plain(start)
    wrapping = wrapping_of(value)
    assert wrapping is not None
    if isinstance(value, torch.nn.Parameter):
        raise AtenTraceError("the program returns a parameter that it has made")
    if value.requires_grad and value.is_leaf:
        raise AtenTraceError("the program returns a tensor subclass that is a leaf of its own")
    if not value.requires_grad:
        results += wrapping.flatten(value)
        return Made(start, wrapping, None)
    kind = expected_kind(value, wrapping)
    if kind.wrapping is None or any(each.requires_grad for each in wrapping.flatten(value)):
        raise AtenTraceError("a result of a tensor subclass has parts that take no gradients")

    def take() -> list[torch.Tensor]:
        return [each.data for each in wrapping.flatten(value)]

    with torch.enable_grad():
        results += out_of([kind], take, [value])
    return Made(start, wrapping, kind)


def enters_wrappers(gm: torch.nn.Module) -> bool:
    """Whether a program is one over what wrappers hold: autograd is above their operators."""
    return any(isinstance(each, Leave) for each in gm.children())
