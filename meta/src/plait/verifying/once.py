"""Operators that are not torch's own are called once, however often a program runs to be compared.

Nobody knows what else such an operator does. So the first run, of what is captured, calls it and
keeps what it was given and gave; the other runs of that call are answered from what was kept, and
have to ask with the same arguments.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from plait_fx_passes import is_written_variant, run_written_variant
from plait_fx_passes.tools import difference
from plait_utils import dataclass
from plait_utils.plain_writers import only_writes

_OWN_NAMESPACES = ("aten", "prims", "prim")


class CalledBackwardError(Exception):
    """Going backward would call an operator that is not torch's own."""


def is_custom(func: Any) -> bool:
    """Whether an operator is not torch's own, and may do more than to compute."""
    if not isinstance(func, OpOverload) or func.namespace in _OWN_NAMESPACES:
        return False
    return not only_writes(func)


@dataclass(slots=True)
class _Call:
    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    written: list[torch.Tensor]
    """What the tensors among the arguments hold afterwards, in order."""


@dataclass(slots=True)
class Calls:
    """The calls that one run has made."""

    made: list[_Call] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.made)


_active = threading.local()


def active_calls() -> Calls | None:
    """Those from which operators are answered now, in this thread."""
    found: Calls | None = getattr(_active, "calls", None)
    return found


@contextmanager
def recording(calls: Calls) -> Iterator[None]:
    """Call operators, and add what they do to `calls`."""
    with _Recording(calls):
        yield


@contextmanager
def answering(calls: Calls, *, wide: bool = False, rest: bool = False) -> Iterator[Answers]:
    """Answer operators from calls that were made.

    Args:
        calls: those of an earlier run.
        wide: give floats in float64, by the order of the calls.
        rest: call operators that were not called before, as after a run that has raised.
    """
    before = active_calls()
    answers = Answers(calls, wide=wide, rest=rest)
    _active.calls = calls
    try:
        with answers:
            yield answers
    finally:
        _active.calls = before


class _CustomCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Sees the calls of custom operators, and lets others through."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # anything else makes torch import its own compiler

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if is_written_variant(func):
            with self:
                return run_written_variant(func, args, given)
        return self.called(func, args, given) if is_custom(func) else func(*args, **given)

    @abstractmethod
    def called(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """What the call of a custom operator gives."""


class _Recording(_CustomCalls):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def called(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        kept_args, kept_kwargs = _copied((args, given))
        result = func(*args, **given)
        written = [each.detach().clone() for each in _tensors((args, given))]
        self._calls.made.append(_Call(func, kept_args, kept_kwargs, _copied(result), written))
        return result


class Answers(_CustomCalls):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Answers operators; ``mismatch`` is what was asked with other arguments."""

    def __init__(self, calls: Calls, *, wide: bool, rest: bool) -> None:
        super().__init__()
        self._left = list(calls.made)
        self._wide = wide
        self._rest = rest
        self.mismatch: str | None = None

    def called(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        own = [each for each in self._left if each.func is func]
        found = next((each for each in own if self._wide or _alike(each, args, given)), None)
        if found is None and self._rest:
            return func(*args, **given)
        if found is None:
            self.mismatch = self.mismatch or str(func)
            if not own:
                raise RuntimeError(f"{func} is called more often than in eager")
            found = own[0]
        self._left = [each for each in self._left if each is not found]
        for target, value in zip(_tensors((args, given)), found.written, strict=True):
            if not torch.equal(target, self._widened(value)):
                target.copy_(value)
        return tree_map_only(torch.Tensor, lambda t: self._widened(t).clone(), found.result)

    def _widened(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(torch.float64) if self._wide and value.is_floating_point() else value

    def unasked(self) -> str | None:
        """An operator that was called in eager and not here; None if there is none."""
        return str(self._left[0].func) if self._left else None


class Refusing(_CustomCalls):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Raises CalledBackwardError before an operator is called."""

    def called(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        raise CalledBackwardError(str(func))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


def _copied(value: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda each: each.detach().clone(), value)


def _alike(call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call was made with such arguments, but for rounding."""
    mine, theirs = tree_leaves((args, kwargs)), tree_leaves((call.args, call.kwargs))
    if len(mine) != len(theirs):
        return False
    return all(
        isinstance(two, torch.Tensor) and difference(one, two, None) is None
        if isinstance(one, torch.Tensor)
        else one == two
        for one, two in zip(mine, theirs, strict=True)
    )
