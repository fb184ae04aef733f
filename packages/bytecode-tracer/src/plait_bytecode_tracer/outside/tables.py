"""The variables of modules and the instance dictionaries of objects from outside."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.outside.assumptions import guard_same
from plait_bytecode_tracer.values.lookup import is_a, is_asked
from plait_bytecode_tracer.values.plain import own_table, thread_table
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import DictVariable

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState


def own_dict(state: TraceState, value: Any, source: Source) -> DictVariable:
    """The instance dictionary of an object from outside."""
    if is_a(value, threading.local):
        found = state.wrap(thread_table(value), thread_source(state, source))
    else:
        found = state.wrap(own_table(value), own_dict_source(state, value, source))
    if not isinstance(found, DictVariable):
        raise TraceBreakError("GB0007", f"the __dict__ of {source.text}")
    return found


def own_dict_source(state: TraceState, value: object, source: Source) -> Source:
    """How the instance dictionary of an object is read past what its class would do."""
    reader = state.constants.name(own_table) if is_asked(type(value)) else None
    return source.instance_dict(reader)


def may_hold_itself(value: object) -> bool:
    """Whether an object may be the dict of its own attributes."""
    return issubclass(type(value), dict) and type(value).__dictoffset__ != 0


def is_own_table(state: TraceState, value: object, source: Source) -> bool:
    """Whether a dict holds its own attributes, as `self.__dict__ = self` makes it; guarded if so.

    An attribute is one of its entries then. That it stays otherwise, `guard_distinct` guards
    where either has changed.
    """
    if not may_hold_itself(value) or own_table(value) is not value:
        return False
    guard_same(state, own_dict_source(state, value, source), source)
    return True


def refuse_shared_table(state: TraceState, value: object, table: object) -> None:
    """Break where another object has the same dict of attributes, of which the trace set some."""
    if state.world.written_tables.get(id(table), id(value)) != id(value):
        text = f"a {type(value).__name__} shares its __dict__, which the call has changed"
        raise TraceBreakError("GB0007", text)


def thread_source(state: TraceState, source: Source) -> Source:
    """What an object holds for the thread that calls: which dict it is, each call asks."""
    reader = state.constants.name(thread_table)
    return Source(f"{reader}({source.code})", f"{source.text}.__dict__", source)


def global_table(state: TraceState, namespace: dict[str, Any]) -> DictVariable:
    """The variables of a module, to be changed."""
    found = state.wrap(namespace, state.constants.source(namespace, "globals"))
    assert isinstance(found, DictVariable)
    return found


def written_globals(state: TraceState, namespace: dict[str, Any]) -> DictVariable | None:
    """The variables of a module if the trace has changed any."""
    found = state.world.wrapped.get(id(namespace))
    if not isinstance(found, DictVariable):
        return None
    return found if found.writes or found.source is None else None


def stand_for(state: TraceState, table: DictVariable) -> dict[str, Any]:
    """An empty dict under which code finds the globals that the trace keeps in a table."""
    for value in state.world.kept:
        if state.world.wrapped.get(id(value)) is table and isinstance(value, dict):
            return value
    stand_in: dict[str, Any] = {}
    state.world.wrapped[id(stand_in)] = table
    state.world.kept.append(stand_in)
    return stand_in
