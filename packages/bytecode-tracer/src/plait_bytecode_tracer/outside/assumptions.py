"""What a trace assumes of values from outside, as guards."""

from __future__ import annotations

import types
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from plait_bytecode_tracer.guards import ABSENT, Kind, class_attribute
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.plain import (
    HOOKS,
    PROTOCOL_OF_TUPLES,
    is_empty,
    own_table,
    shown,
)
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import CellVariable, DictVariable

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState


_GUARD = 4
"""How many instructions a guard of a constant counts for, by the time that it takes."""


def require(
    state: TraceState, source: Source | None, kind: Kind, expected: object, text: str
) -> None:
    """Guard an assumption of one of the known kinds."""
    state.guards.require(source, kind, expected, text, state.frames.line)


def guard(state: TraceState, source: Source | None, condition: str, text: str) -> None:
    """Guard a Python condition, where no kind says it."""
    state.require(source, Kind.PYTHON, condition, text)


def guard_identity(state: TraceState, source: Source, value: object) -> None:
    """An object keeps being this very one."""
    named = is_a(value, type | types.FunctionType | types.BuiltinFunctionType)
    shown = getattr(value, "__qualname__", "") if named else type(value).__name__
    state.require(source, Kind.IDENTITY, value, f"{source.text} is {shown}")


def guard_type(state: TraceState, source: Source, value: object) -> None:
    """An object keeps being of exactly this class."""
    text = f"type({source.text}) is {type(value).__name__}"
    state.require(source, Kind.TYPE, type(value), text)


def guard_constant(state: TraceState, value: Any, source: Source) -> None:
    """A value that cannot change, by what it is equal to."""
    state.pace.effort += _GUARD
    one_of_a_kind = type(None) | bool | type(Ellipsis) | type(NotImplemented) | Enum
    if isinstance(value, one_of_a_kind | torch.dtype | torch.layout | torch.memory_format):
        state.require(source, Kind.IDENTITY, value, f"{source.text} is {shown(value)}")
    else:
        state.require(source, Kind.EQUAL, value, f"{source.text} == {shown(value)}")


def guard_function(state: TraceState, function: types.FunctionType) -> None:
    """A function that was inlined keeps its code and its defaults."""
    source = state.constants.source(function, function.__qualname__)
    parts = (function.__code__, function.__defaults__, function.__kwdefaults__)
    text = f"{function.__qualname__} keeps its code and defaults"
    state.require(source, Kind.FUNCTION, parts, text)
    if function.__kwdefaults__:
        table = source.attribute("__kwdefaults__")
        state.require(table, Kind.KEYS, tuple(function.__kwdefaults__), text)
        for name, value in function.__kwdefaults__.items():
            if is_constant(value):  # others are read from there
                state.guard_constant(value, table.element(name, name))


def guard_no_own(state: TraceState, source: Source, name: str, *, plain: bool = False) -> None:
    """An object keeps having no attribute of its own under a name.

    With `plain`, its class reads attributes as `object` does.
    """
    table = source.instance_dict(None if plain else state.constants.name(own_table))
    state.require(table, Kind.LACKS, name, f"{source.text} has no own {name}")


def guard_no_variable(
    state: TraceState, source: Source, module: types.ModuleType, name: str
) -> None:
    """A module keeps having nothing under a name."""
    if type(module) is types.ModuleType and "__getattr__" not in module.__dict__:
        for absent in (name, "__getattr__"):
            guard_no_own(state, source, absent, plain=True)
    else:  # its class, or a function of its own, may give more than it holds
        text = f"{source.text} has no {name}"
        state.require(source, Kind.NO_ATTRIBUTE, name, text)


def guard_no_hooks(state: TraceState, source: Source, module: torch.nn.Module) -> None:
    """A module has no hooks, and there are none for all modules.

    Where the call itself has taken them away, what was there before is guarded already.
    """
    for name in HOOKS:
        if not _is_written(state, module.__dict__[name]):
            text = f"{source.text} has no hooks"
            state.require(source.entry(name), Kind.LENGTH, 0, text)
    tables = torch.nn.modules.module.__dict__
    shared = state.constants.source(tables, "torch.nn.modules.module")
    for name in HOOKS:
        if not _is_written(state, tables[f"_global{name}"]):
            text = "there are no global module hooks"
            state.require(shared.named(f"_global{name}"), Kind.LENGTH, 0, text)


def _is_written(state: TraceState, table: dict[int, object]) -> bool:
    known = state.world.wrapped.get(id(table))
    return isinstance(known, DictVariable) and bool(known.writes)


def guard_class_attribute(state: TraceState, cls: type, name: str) -> None:
    """A class keeps what it and its bases define under a name, or that they do not."""
    if (id(cls), name) in state.class_guards:
        return
    state.class_guards.add((id(cls), name))
    found = class_attribute(cls, name)
    text = f"{cls.__qualname__} keeps its {name}"
    if found is ABSENT:
        text = f"{cls.__qualname__} defines no {name}"
    source = state.constants.source(cls, cls.__qualname__)
    state.require(source, Kind.CLASS_ATTRIBUTE, (name, found), text)


def guard_named_tuple(state: TraceState, cls: type) -> None:
    """A class of named tuples keeps how its instances act."""
    if hasattr(cls, "_fields") and not state.made.is_made(cls):
        for name in sorted(PROTOCOL_OF_TUPLES):
            guard_class_attribute(state, cls, name)


def guard_empty(state: TraceState, cell: CellVariable) -> None:
    """A real cell keeps holding nothing."""
    assert cell.source is not None
    test = f"{state.constants.name(is_empty)}({{}})"
    state.guard(cell.source.base, test, f"{cell.source.text} is not set")


def guard_same(state: TraceState, source: Source, first: Source) -> None:
    """Both sources must give one object."""
    state.require(source, Kind.SAME_OBJECT, first, f"{source.text} is {first.text}")
