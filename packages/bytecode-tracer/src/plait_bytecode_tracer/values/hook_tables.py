"""A module's hooks by their numbers, each read from its place in the order of the dict."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.values.hook_numbers import HookKey, HookNumber
from plait_bytecode_tracer.values.lazy import LazyDict
from plait_bytecode_tracer.values.object_keys import entry_source, guard_key, nth_key
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import Known, Variable

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState


class HookTable(LazyDict):
    """What a dict of the caller's has by numbers of hooks.

    Those who go through it get keys whose numbers are not guarded. All numbers are once an entry is
    asked for by a number from elsewhere, or changed: it may be at another place in the next call.
    """

    __slots__ = ("_is_fixed", "_keys", "_source", "_state")

    def __init__(self, state: TraceState, value: dict[int, Any], source: Source) -> None:
        self._keys = keys = _keys(state, value, source)
        self._state, self._source = state, source
        self._is_fixed = False

        def wrap(number: int) -> Variable:
            return state.wrap(value[number], entry_source(source, keys[number]))

        super().__init__(value, wrap, self._guard_key)

    def _guard_key(self, key: Any, present: bool | None) -> None:
        """Guard how many hooks there are, or that there is one of a number or not."""
        state, source = self._state, self._source
        if present is None:
            text = f"len({source.text}) == {len(self._keys)}"
            state.require(source, Kind.LENGTH, len(self._keys), text)
            for number, own in self._keys.items():
                state.guard_type(own.variable.source, number)
        elif isinstance(key, HookKey):
            guard_key(state, source, key, present)
        elif present:
            self._fix()
        else:
            state.require(source, Kind.LACKS, key, f"{key!r} not in {source.text}")

    def _fix(self) -> None:
        """Guard which numbers there are."""
        if not self._is_fixed:
            self._is_fixed = True
            text = f"keys of {self._source.text} == {[*self._keys]}"
            self._state.require(self._source, Kind.KEYS, tuple(self._keys), text)

    def _own(self, key: Any) -> int | None:
        """The number of a key that was read from here."""
        if isinstance(key, HookKey) and self._keys.get(key.number) is key:
            return key.number
        return None

    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            yield self._keys.get(number, number)

    def __contains__(self, key: Any) -> bool:
        number = self._own(key)
        if number is not None:
            return dict.__contains__(self, number)
        self._guard_key(key, key in self._original)
        return dict.__contains__(self, key)

    def __getitem__(self, key: Any) -> Variable:
        number = self._own(key)
        return super().__getitem__(key) if number is None else self._read(number)

    def __setitem__(self, key: Any, value: Variable) -> None:
        self._fix()
        super().__setitem__(self._number(key), value)

    def __delitem__(self, key: Any) -> None:
        self._fix()
        super().__delitem__(self._number(key))

    def _number(self, key: Any) -> Any:
        number = self._own(key)
        return key if number is None else number


def _keys(state: TraceState, numbers: dict[int, Any], source: Source) -> dict[int, HookKey]:
    """The keys of a table, each with its place as its source."""
    reader = state.constants.name(nth_key)
    found = {}
    for place, number in enumerate(numbers):
        text = f"key {place} of {source.text}"
        where = Source(f"{reader}({source.code}, {place})", text, source)
        settled = partial(_settled, state, number, where)
        found[number] = HookKey(HookNumber(number, where, settled))
    return found


def _settled(state: TraceState, number: int, where: Source) -> Known:
    state.guard_constant(number, where)
    return Known(number, where)
