"""Which objects are certainly alive, where a trace stands.

An object that the trace made lives while a frame of the trace holds it, directly or through
other objects. What is found here lives; what is not found may be held all the same, by what
a trace does not follow.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.lazy import raw_items
from plait_bytecode_tracer.variables import (
    BoundVariable,
    CallableVariable,
    CellVariable,
    DictVariable,
    FunctionVariable,
    GeneratorVariable,
    Known,
    ObjectKey,
    ObjectVariable,
    PartialVariable,
    ReferenceVariable,
    SequenceVariable,
    SetVariable,
    UnreadVariable,
    Variable,
    ViewVariable,
    is_constant,
)

if TYPE_CHECKING:
    from plait_bytecode_tracer.frame import Frame
    from plait_bytecode_tracer.state import TraceState

_MISSING = object()


def is_held(state: TraceState, target: Variable) -> bool:
    """Whether a frame that runs in the trace holds an object, or what outlives the trace."""
    held = _held(state)
    return id(target.value if isinstance(target, Known) else target) in held


def is_kept(state: TraceState, real: object) -> bool:
    """Whether an object from outside, alive when the call began, is certainly alive still."""
    drops = _drops(state)
    if not drops and not state.arguments:
        return True
    held = _held(state)

    def is_there(value: object) -> bool:
        return id(value) in held or id(state.wrapped.get(id(value), value)) in held

    return is_there(real) or (not drops and all(map(is_there, state.arguments)))


# What live frames hold.


def _held(state: TraceState) -> dict[int, object]:
    """The variables that live frames reach, by their ids, and the objects of unread ones."""
    found: dict[int, object] = {}
    waiting: list[Any] = [each for frame in state.running for each in _of_frame(frame)]
    waiting += [*state.leaving, *state.changed.values()]
    waiting += [value for written in state.attributes.values() for value in written.values()]
    while waiting:
        value = waiting.pop()
        if id(value) in found:
            continue
        found[id(value)] = value
        if isinstance(value, UnreadVariable | Known):
            found[id(value.value)] = value.value
        waiting += _parts(value)
    return found


def _of_frame(frame: Frame) -> Iterator[Any]:
    yield from frame.locals.values()
    yield from frame.stack
    yield from frame.cells.values()
    yield from frame.function.closure
    yield from frame.handled
    if frame.namespace is not None:
        yield frame.namespace


def _parts(value: Any) -> list[Any]:
    """What an object of the trace holds."""
    match value:
        case ReferenceVariable():
            return []
        case DictVariable():
            keys = [key.variable for key in dict.keys(value.items) if isinstance(key, ObjectKey)]
            more = [*value.attributes.values(), value.factory]
            return [*keys, *dict.values(value.items), *filter(None, more)]
        case SequenceVariable():
            return raw_items(value.items)
        case SetVariable():
            return [item.variable for item in value.items if isinstance(item, ObjectKey)]
        case ObjectVariable():
            return [*value.attributes.values(), *filter(None, [value.base])]
        case CellVariable():
            return [] if value.content is None else [value.content]
        case FunctionVariable():
            tables = value.keyword_defaults, value.annotations, value.attributes
            inner = [item for table in tables for item in table.values()]
            return [*value.closure, *value.defaults, *inner]
        case BoundVariable():
            return [value.function, value.self]
        case PartialVariable():
            return [value.function, value.args, value.kwargs]
        case CallableVariable():
            return [*value.args, *value.kwargs.values()]
        case ViewVariable():
            return [value.owner]
        case GeneratorVariable():
            return [] if value.frame.result is not None else list(_of_frame(value.frame))
    return []


# What the trace has let go of.


def _drops(state: TraceState) -> bool:
    """Whether the trace may have dropped what objects from outside held."""
    if state.context or state.taken:
        return True
    if any(_drops_from(state, variable) for variable in state.changed.values()):
        return True
    return any(
        _replaces(state.owners[key], name)
        for key, attributes in state.attributes.items()
        for name in attributes
    )


def _replaces(owner: Any, name: str) -> bool:
    """Whether an object from outside held something under a name that may die."""
    if not isinstance(owner, Known):
        return True
    table = getattr(owner.value, "__dict__", {})
    before = table.get(name, _MISSING)
    return before is not _MISSING and not is_constant(before)


def _drops_from(state: TraceState, variable: Variable) -> bool:
    """Whether less is in a container from outside than was when the call began."""
    match variable:
        case DictVariable(original=dict() as before, writes=writes):
            return any(kind != "set" or _lost(before, key) for kind, key in writes)
        case SequenceVariable(items=items, original=list() as before):
            return not _starts_with(state, raw_items(items), before)
        case CellVariable(original=types.CellType() as cell):
            try:
                return not is_constant(cell.cell_contents)
            except ValueError:
                return False
        case SetVariable(items=items, original=set() as before):
            kept = {
                id(key.variable.value)
                for key in items
                if isinstance(key, ObjectKey) and isinstance(key.variable, Known)
            }
            return not all(is_constant(each) or id(each) in kept for each in before)
    return True


def _lost(before: dict[Any, Any], key: Any) -> bool:
    """Whether a dict held something that may die under a key that was set."""
    if isinstance(key, ObjectKey):
        return True
    return key in before and not is_constant(before[key])


def _starts_with(state: TraceState, items: list[Any], before: list[Any]) -> bool:
    """Whether the elements that a list had are its first ones still."""
    if len(items) < len(before):
        return False
    return all(
        getattr(item, "position", -1) == place
        or item is state.wrapped.get(id(real))
        or (isinstance(item, Known) and item.value is real)
        for place, (item, real) in enumerate(zip(items, before, strict=False))
    )
