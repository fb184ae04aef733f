"""Functions that a caller made for the call: by what they are made of, not by which they are.

A function that is defined where it is passed on is another object in each call. Its code, its
globals, its defaults and what its closure holds decide what it does: these are guarded.
"""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from typing import TYPE_CHECKING

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.outside.tables import global_table, own_dict
from plait_bytecode_tracer.values.hook_numbers import HookNumber
from plait_bytecode_tracer.values.lookup import is_defined, is_field
from plait_bytecode_tracer.values.sources import Access, Source
from plait_bytecode_tracer.values.variables import (
    CellVariable,
    DictVariable,
    FunctionVariable,
    Known,
    MethodVariable,
    SequenceVariable,
    Variable,
)

if TYPE_CHECKING:
    from plait_bytecode_tracer.frames.frame import Frame
    from plait_bytecode_tracer.state import TraceState

_LIBRARIES = ("torch", "functools", "contextlib", "typing", "dataclasses", "collections")


def is_made_for_calls(value: types.FunctionType, source: Source) -> bool:
    """Whether a function may well be another object in the next call: a local one, passed."""
    if "<locals>" not in value.__qualname__ or not is_passed(source):
        return False
    return str(value.__module__).partition(".")[0] not in _LIBRARIES


def is_passed(source: Source) -> bool:
    """Whether a value is reached from an argument of the call."""
    base: Source | None = source
    while base is not None:
        if base.access is Access.ARGUMENT:
            return True
        base = base.base
    return False


def wrap_function(state: TraceState, value: types.FunctionType, source: Source) -> Variable:
    """A function of the caller's by its parts, guarded."""
    state.guard_type(source, value)
    code = value.__code__
    text = f"{source.text} has the code of {value.__qualname__}"
    if code.co_filename.startswith("<"):  # it may be compiled anew for each function
        state.guard(source.attribute("__code__"), f"{{}} == {state.constants.name(code)}", text)
    else:
        state.require(source.attribute("__code__"), Kind.IDENTITY, code, text)
    _guard_globals(state, value, source.attribute("__globals__"))
    made = FunctionVariable(code, value.__globals__, value.__name__, source=source, original=value)
    state.world.wrapped[id(value)] = made  # its closure may hold it
    state.world.kept.append(value)
    closure = source.attribute("__closure__")
    for place, (cell, name) in enumerate(
        zip(value.__closure__ or (), code.co_freevars, strict=True)
    ):
        found = state.wrap(cell, replace(closure.element(place, str(place)), text=name))
        assert isinstance(found, CellVariable)
        made.closure.append(found)
    text = f"the defaults of {source.text}"
    defaults = state.wrap(value.__defaults__, replace(source.attribute("__defaults__"), text=text))
    if isinstance(defaults, SequenceVariable):
        made.defaults = list(defaults.items)
    named = state.wrap(value.__kwdefaults__, source.attribute("__kwdefaults__"))
    if isinstance(named, DictVariable):
        made.keyword_defaults = dict(named.items.items())
    return made


def _guard_globals(state: TraceState, value: types.FunctionType, source: Source) -> None:
    """A function's globals stay what they are: those of a module, or what it reads of its own."""
    table, names = value.__globals__, value.__code__.co_names
    has_own = all(name in table for name in names) and not any(
        isinstance(each, types.CodeType) for each in value.__code__.co_consts
    )
    if has_own and table.get("__name__") not in sys.modules:  # of a named tuple's `__new__`
        for name in names:
            text = f"the global {name} of {value.__qualname__}"
            state.require(source.item(repr(name), text), Kind.IDENTITY, table[name], text)
        return
    text = f"the globals of {value.__qualname__}"
    state.require(source, Kind.IDENTITY, table, text)


def outside_attribute(frame: Frame, owner: FunctionVariable, name: str) -> Variable | None:
    """`function.name` of a function of the caller's; None where there is no such attribute."""
    state, function, source = frame.state, owner.original, owner.source
    assert function is not None
    assert source is not None
    if name in ("__code__", "__globals__", "__closure__", "__class__", "__builtins__"):
        return owner_part(frame, owner, name)
    if name == "__dict__":
        return own_dict(state, function, source)
    if name in function.__dict__ and not is_field(types.FunctionType, name):
        return state.wrap(function.__dict__[name], source.entry(name))
    if name in _READ:
        return state.wrap(getattr(function, name), source.attribute(name))
    if is_defined(types.FunctionType, name):
        return MethodVariable(owner, name)
    state.require(source, Kind.NO_ATTRIBUTE, name, f"no attribute {name}")
    return None


_READ = frozenset(
    {
        *("__name__", "__qualname__", "__doc__", "__module__", "__defaults__", "__kwdefaults__"),
        *("__annotations__", "__type_params__"),
    }
)
"""What is read from the function itself, and guarded."""


def owner_part(frame: Frame, owner: FunctionVariable, name: str) -> Variable | None:
    """What is guarded to be the same in each call, and the closure."""
    from plait_bytecode_tracer.frames.functions import part_of_code

    if name == "__globals__":
        return global_table(frame.state, owner.globals)
    return part_of_code(frame, owner, name)


def settled(state: TraceState, variable: Variable) -> Variable:
    """A function of the caller's as the one that it is, a hook's number by its value."""
    if isinstance(variable, HookNumber):
        return variable.settled()
    if isinstance(variable, FunctionVariable) and variable.original is not None:
        assert variable.source is not None
        state.guard_identity(variable.source, variable.original)
        return Known(variable.original, variable.source)
    return variable


def refuse_change(owner: FunctionVariable, name: str) -> None:
    """Break at a write to a function of the caller's."""
    if owner.source is not None:
        raise TraceBreakError("GB0007", f"a change of {name!r} of the function {owner.name}")
