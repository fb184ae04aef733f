"""Writes to what holds attributes: tables of instances, slots, globals."""

from __future__ import annotations

import collections
import sys
import types
from typing import Any, NoReturn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.containers import describe, dict_delete, dict_set
from plait_bytecode_tracer.objects.statics import (
    DELETED,
    MISSING,
    class_of,
    is_data_descriptor,
    is_slot,
    static_attribute,
)
from plait_bytecode_tracer.outside.tables import global_table, is_own_table, refuse_shared_table
from plait_bytecode_tracer.values.classes import name_in_errors
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.plain import own_table
from plait_bytecode_tracer.values.variables import DictVariable, Known, ObjectVariable, Variable


def fails_to_set(kind: str, name: str) -> NoReturn:
    """Raise what setting or deleting an attribute of an object without a dict raises."""
    text = f"{kind!r} object has no attribute {name!r}"
    if sys.version_info >= (3, 13):
        text += " and no __dict__ for setting new attributes"
    fails(AttributeError, text)


def write_attribute(frame: Frame, owner: Variable, name: str, value: Variable) -> None:
    """Set what an object itself holds under a name."""
    cls = class_of(owner)
    if not cls.__dictoffset__:
        static = static_attribute(cls, name)
        if static is MISSING:
            fails_to_set(name_in_errors(cls), name)
        if not is_data_descriptor(static):
            text = f"{name_in_errors(cls)!r} object attribute {name!r} is read-only"
            fails(AttributeError, text)
    if isinstance(owner, ObjectVariable):
        owner.attributes[name] = value
        return
    if not isinstance(owner, Known) or owner.source is None:
        raise TraceBreakError("GB0007", f"a write to the attribute {name!r} of {describe(owner)}")
    state = frame.state
    if is_a(owner.value, types.ModuleType):
        write_global(frame, own_table(owner.value), name, value)
        return
    is_entry = not is_slot(cls, name) and cls.__dictoffset__
    table = _known_table(frame, owner) if is_entry else None
    again = state.world.attributes.get(id(owner.value), {}).get(name) is DELETED
    if again and value is not DELETED and is_entry:
        from plait_bytecode_tracer.objects.objects import own_attributes

        table = own_attributes(frame, owner)  # it comes last now among the attributes
    if isinstance(table, DictVariable):
        write_entry(frame, table, name, value)
        return
    if is_entry:
        held = own_table(owner.value)
        refuse_shared_table(state, owner.value, held)
        state.world.written_tables[id(held)] = id(owner.value)
    state.world.attributes.setdefault(id(owner.value), {})[name] = value
    state.world.owners[id(owner.value)] = owner


def _known_table(frame: Frame, owner: Known) -> Variable | None:
    """What stands for the dict in which an object holds its attributes, if anything does yet."""
    if owner.source is not None and is_own_table(frame.state, owner.value, owner.source):
        from plait_bytecode_tracer.objects.objects import storage_of

        if issubclass(class_of(owner), collections.OrderedDict):
            raise TraceBreakError(
                "GB0007", "a write to an attribute of an OrderedDict, past its order"
            )
        return storage_of(frame, owner)
    return frame.state.world.wrapped.get(id(own_table(owner.value)))


def write_entry(frame: Frame, table: DictVariable, name: str, value: Variable) -> None:
    """Set or, with DELETED, delete an entry of the dict in which an object holds its attributes."""
    if value is not DELETED:
        dict_set(frame, table, name, value)
    elif name in table.items:
        dict_delete(frame, table, name)


def write_global(frame: Frame, namespace: dict[str, Any], name: str, value: Variable) -> None:
    """Set or, with DELETED, delete a variable of a module."""
    write_entry(frame, global_table(frame.state, namespace), name, value)
