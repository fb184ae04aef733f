"""Attributes of functions that the traced code made."""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.outside.assumptions import guard_empty
from plait_bytecode_tracer.outside.functions import outside_attribute, refuse_change
from plait_bytecode_tracer.outside.tables import global_table, written_globals
from plait_bytecode_tracer.values.lookup import is_defined, is_field
from plait_bytecode_tracer.values.plain import is_empty
from plait_bytecode_tracer.values.variables import (
    CellVariable,
    DictVariable,
    FunctionVariable,
    Known,
    MethodVariable,
    SequenceVariable,
    Variable,
)

_DESCRIBED = frozenset({"__name__", "__qualname__", "__doc__", "__module__", "__type_params__"})
_FIXED = frozenset({"__globals__", "__closure__", "__builtins__"})


def function_attribute(frame: Frame, owner: FunctionVariable, name: str) -> Variable | None:
    """`function.name`; None where there is no such attribute."""
    if owner.source is not None:
        return outside_attribute(frame, owner, name)
    if name in owner.described:
        return owner.described[name]
    if name in owner.attributes and not is_field(types.FunctionType, name):
        return owner.attributes[name]
    known = part_of_code(frame, owner, name)
    if known is not None:
        return known
    if name == "__globals__":
        return global_table(frame.state, owner.globals)
    if name == "__builtins__" and own_builtins(frame, owner.globals):
        return global_table(frame.state, builtins.__dict__)
    if name in _FIXED:
        raise TraceBreakError("GB0007", f"{name} of a function made in the traced code")
    return MethodVariable(owner, name) if is_defined(types.FunctionType, name) else None


def own_builtins(frame: Frame, namespace: dict[str, Any]) -> bool:
    """Whether functions with these globals find the interpreter's builtins."""
    table = written_globals(frame.state, namespace)
    if table is not None and "__builtins__" in table.items:
        return False
    found = namespace.get("__builtins__", builtins)
    return found is builtins or found is builtins.__dict__


def part_of_code(frame: Frame, owner: FunctionVariable, name: str) -> Variable | None:
    """What the function is made of."""
    match name:
        case "__name__":
            return constant(owner.name)
        case "__qualname__":
            return constant(owner.code.co_qualname)
        case "__code__":
            return constant(owner.code)
        case "__defaults__":
            return SequenceVariable(list(owner.defaults), tuple) if owner.defaults else _none()
        case "__kwdefaults__":
            named = owner.keyword_defaults
            return DictVariable(named) if named else _none()
        case "__module__":
            table = written_globals(frame.state, owner.globals)
            if table is not None:
                return table.items.get("__name__", constant(None))
            return constant(owner.globals.get("__name__"))
        case "__dict__":
            return DictVariable(owner.attributes)
        case "__annotations__":
            owner.described[name] = DictVariable(owner.annotations)  # the same one at each look
            return owner.described[name]
        case "__class__":
            return constant(types.FunctionType)
        case "__closure__":
            return SequenceVariable(list(owner.closure), tuple) if owner.closure else _none()
        case "__doc__":
            return constant(documentation(owner.code))
        case "__type_params__" if sys.version_info >= (3, 12):
            return constant(())
    return None


def _none() -> Known:
    return constant(None)


def documentation(code: types.CodeType) -> Any:
    """The text that documents a function, or None."""
    first = code.co_consts[0] if code.co_consts else None
    return first if isinstance(first, str) else None


def store_function_attribute(owner: FunctionVariable, name: str, value: Variable) -> None:
    """`function.name = value`."""
    refuse_change(owner, name)
    if name in ("__name__", "__qualname__") and not _is_text(value):
        fails(TypeError, f"{name} must be set to a string object")
    if name in _DESCRIBED:
        owner.described[name] = value
    elif name in _FIXED:
        fails(AttributeError, "readonly attribute")
    elif name == "__annotations__" and isinstance(value, DictVariable):
        owner.annotations = value.items
        owner.described[name] = value
    elif name.startswith("__") and is_defined(types.FunctionType, name):
        raise TraceBreakError("GB0007", f"a write to {name} of a function")
    else:
        owner.attributes[name] = value


def _is_text(value: Variable) -> bool:
    return isinstance(value, Known) and isinstance(value.value, str)


# Cells.


def cell_content(frame: Frame, cell: CellVariable) -> Variable:
    """What a cell holds. Raises ValueError in the traced program if it is empty."""
    return content_of(frame, cell) or fails(ValueError, "Cell is empty")


def content_of(frame: Frame, cell: CellVariable) -> Variable | None:
    """What a cell holds, guarded; None if it is empty."""
    if cell.content is None and cell.original is not None and not cell.is_cleared:
        if is_empty(cell.original):
            guard_empty(frame.state, cell)
            return None
        cell.content = frame.state.wrap(cell.original.cell_contents, cell.source)
    return cell.content


def set_cell_content(frame: Frame, cell: CellVariable, value: Variable) -> None:
    """`cell.cell_contents = value`."""
    cell.content = value
    if cell.original is not None:
        frame.state.world.changed[id(cell)] = cell
