"""A module's hooks by their numbers, each read from its place in the order of the dict."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.values.hook_numbers import HookKey, HookNumber
from plait_bytecode_tracer.values.lazy import GuardKeys, LazyDict, Wrap
from plait_bytecode_tracer.values.object_keys import nth_key
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import Known, Variable

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState


class HookTable(LazyDict):
    """The values by number; which numbers these are is guarded once more than that matters.

    `fix` guards all numbers: an entry that is asked for by a number from elsewhere, or changed, may
    be at another place in the next call.
    """

    __slots__ = ("_fix", "_is_fixed")

    def __init__(
        self, keys: list[HookKey], wrap: Wrap, guard: GuardKeys, fix: Callable[[], None]
    ) -> None:
        super().__init__(keys, wrap, guard)
        self._fix = fix
        self._is_fixed = False

    def _fixed(self) -> None:
        if not self._is_fixed:
            self._fix()
            self._is_fixed = True

    def _is_own(self, key: Any) -> bool:
        """Whether a number was read from here."""
        return any(key is own for own in self._original)

    def __contains__(self, key: Any) -> bool:
        if self._is_own(key) or self._is_fixed:
            return super().__contains__(key)
        found = key in self._original
        if found and not isinstance(key, HookKey):
            self._fixed()
        elif self._whole:
            self._guard(key, found)
        return super().__contains__(key)

    def __setitem__(self, key: Any, value: Variable) -> None:
        self._fixed()
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self._fixed()
        super().__delitem__(key)


def hook_keys(state: TraceState, source: Source, numbers: list[int]) -> list[HookKey]:
    """The keys of a table, each with its place as its source."""
    reader = state.constants.name(nth_key)
    found = []
    for place, number in enumerate(numbers):
        text = f"key {place} of {source.text}"
        where = Source(f"{reader}({source.code}, {place})", text, source)
        found.append(HookKey(HookNumber(number, where, partial(_settled, state, number, where))))
    return found


def _settled(state: TraceState, number: int, where: Source) -> Known:
    state.guard_constant(number, where)
    return Known(number, where)


def guard_places(state: TraceState, source: Source, keys: list[HookKey]) -> None:
    """Guard how many hooks there are."""
    state.require(source, Kind.LENGTH, len(keys), f"len({source.text}) == {len(keys)}")
    for key in keys:
        state.guard_type(key.variable.source, key.number)


def guard_numbers(state: TraceState, source: Source, keys: list[HookKey]) -> None:
    """Guard which numbers they have."""
    numbers = tuple(key.number for key in keys)
    state.require(source, Kind.KEYS, numbers, f"keys of {source.text} == {[*numbers]}")
