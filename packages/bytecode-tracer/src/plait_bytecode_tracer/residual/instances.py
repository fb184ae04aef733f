"""Instances of classes made anew after a graph."""

from __future__ import annotations

import collections
import types
from typing import TYPE_CHECKING

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.objects.statics import MISSING, builtin_base, static_attribute
from plait_bytecode_tracer.residual.containers import elements_of_set, key_of
from plait_bytecode_tracer.twins.registry import TWINS
from plait_bytecode_tracer.values.plain import own_table
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    Variable,
)

if TYPE_CHECKING:
    from plait_bytecode_tracer.residual.rebuild import Rebuilder


def new_object(rebuilder: Rebuilder, variable: ObjectVariable) -> str:
    """An instance of a class, past its `__init__`."""
    if variable.source is not None:
        return rebuilder.writer.value(variable.source)
    twin = TWINS.get(variable.cls)
    if twin is not None:
        made = twin.again(variable.attributes)
        name = rebuilder.iterator(made)
        if made.fill is not None:
            rebuilder.names[id(variable)] = name
            rebuilder.lines.append(f"{name}.{made.fill[0]}({rebuilder.value(made.fill[1])})")
        return name
    constants = rebuilder.state.constants
    cls = rebuilder.real(variable.cls)
    base = builtin_base(variable.cls)
    new = constants.name((base or object).__new__)
    initial = _initial_arguments(rebuilder, variable)
    name = rebuilder.assign(f"{new}({', '.join([cls, *initial])})")
    rebuilder.names[id(variable)] = name
    if base is not None and not initial:
        rebuilder.made.fill(lambda: _fill(rebuilder, name, base, variable.base))
    rebuilder.made.fill(lambda: set_own_attributes(rebuilder, name, variable))
    return name


def set_own_attributes(rebuilder: Rebuilder, name: str, variable: ObjectVariable) -> None:
    """Give an instance what the trace has set on it."""
    constants = rebuilder.state.constants
    table = constants.name(own_table)
    set_ = constants.name(object.__setattr__)
    for attribute, value in variable.attributes.items():
        if not isinstance(attribute, str):
            raise TraceBreakError("GB0009", "an object with attributes that are no names")
        static = static_attribute(variable.cls, attribute)
        slotted = isinstance(static, types.MemberDescriptorType | types.GetSetDescriptorType)
        plain = static is MISSING or not hasattr(type(static), "__set__")
        if slotted or plain or not hasattr(variable.cls, "__dict__"):
            line = f"{set_}({name}, {attribute!r}, {rebuilder.value(value)})"
        else:
            line = f"{table}({name})[{attribute!r}] = {rebuilder.value(value)}"
        rebuilder.lines.append(line)


def _initial_arguments(rebuilder: Rebuilder, variable: ObjectVariable) -> list[str]:
    """What `__new__` takes for immutable storage."""
    storage = variable.base
    if isinstance(storage, Known):
        return [rebuilder.value(storage)]
    if isinstance(storage, SequenceVariable) and storage.kind is tuple:
        items = "".join(f"{rebuilder.value(item)}, " for item in storage.items)
        return [f"({items})"]
    if isinstance(storage, SetVariable) and storage.kind is frozenset:
        return [elements_of_set(rebuilder, storage.items)]
    return []


def _fill(rebuilder: Rebuilder, name: str, base: type, storage: Variable | None) -> None:
    """Put the elements into an instance of a class that inherits from a builtin container."""
    constants = rebuilder.state.constants
    match storage:
        case ObjectVariable(attributes=parts):
            start = constants.name(collections.deque.__init__)
            items, maxlen = rebuilder.value(parts["_items"]), rebuilder.value(parts["_maxlen"])
            rebuilder.lines.append(f"{start}({name}, {items}, {maxlen})")
        case DictVariable():
            if storage.factory is not None:
                start = constants.name(collections.defaultdict.__init__)
                rebuilder.lines.append(f"{start}({name}, {rebuilder.value(storage.factory)})")
            put = constants.name(getattr(base, "__setitem__"))  # noqa: B009  # of the base
            for key, item in storage.items.items():
                rebuilder.lines.append(
                    f"{put}({name}, {key_of(rebuilder, key)}, {rebuilder.value(item)})"
                )
        case SequenceVariable():
            extend = constants.name(getattr(base, "extend"))  # noqa: B009  # of the base
            items = ", ".join(rebuilder.value(item) for item in storage.items)
            rebuilder.lines.append(f"{extend}({name}, [{items}])")
        case SetVariable():
            update = constants.name(set.update)
            rebuilder.lines.append(f"{update}({name}, {elements_of_set(rebuilder, storage.items)})")
