"""The variables of modules and the instance dictionaries of objects from outside."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.errors import TraceBreakError
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
        reader = state.constants.name(own_table) if is_asked(type(value)) else None
        found = state.wrap(own_table(value), source.instance_dict(reader))
    if not isinstance(found, DictVariable):
        raise TraceBreakError("GB0007", f"the __dict__ of {source.text}")
    return found


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
