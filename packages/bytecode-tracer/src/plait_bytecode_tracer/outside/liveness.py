"""Which objects are certainly alive, where a trace stands.

An object that the trace made lives while a frame of the trace holds it, directly or through
other objects. What is found here lives; what is not found may be held all the same, by what
a trace does not follow.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.lookup import is_a, table_of
from plait_bytecode_tracer.values.object_keys import real_key
from plait_bytecode_tracer.values.open_lists import open_of, raw_items
from plait_bytecode_tracer.values.variables import (
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
)

if TYPE_CHECKING:
    from plait_bytecode_tracer.frames.frame import Frame
    from plait_bytecode_tracer.state import TraceState

_MISSING = object()


def is_held(state: TraceState, target: Variable) -> bool:
    """Whether a frame that runs in the trace holds an object, or what outlives the trace."""
    held = _held(state)
    return id(target.value if isinstance(target, Known) else target) in held


def is_kept(state: TraceState, real: object) -> bool:
    """Whether an object from outside, alive when the call began, is certainly alive still."""
    drops = _drops(state)
    if not drops and not state.world.arguments:
        return True
    held = _held(state)

    def is_there(value: object) -> bool:
        return id(value) in held or id(state.world.wrapped.get(id(value), value)) in held

    if any(_is_of_module(state, each, real) for each in held.values()):
        return True
    return is_there(real) or (not drops and all(map(is_there, state.world.arguments)))


def _is_of_module(state: TraceState, holder: object, real: object) -> bool:
    """Whether an object is an attribute of a module, as its tables of hooks are."""
    if not is_a(holder, torch.nn.Module):
        return False
    written = state.world.attributes.get(id(holder), {})
    table = table_of(holder)
    return any(value is real and name not in written for name, value in table.items())


# What live frames hold.


def _held(state: TraceState) -> dict[int, object]:
    """The variables that live frames reach, by their ids, and the objects of unread ones."""
    found: dict[int, object] = {}
    waiting: list[Any] = [each for frame in state.frames.running for each in _of_frame(frame)]
    waiting += [*state.frames.leaving, *state.world.changed.values()]
    waiting += [value for written in state.world.attributes.values() for value in written.values()]
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


def lost(state: TraceState) -> Iterator[object]:
    """The objects that the trace has taken out of objects from outside, or of its arguments."""
    for variable in [*state.world.changed.values()]:
        yield from _lost_from(state, variable)
    for key, written in state.world.attributes.items():
        for name in written:
            yield from _replaced(state, state.world.owners[key], name)
    if state.world.arguments:
        held = _held(state)
        for value in state.world.arguments:
            if id(value) not in held and id(state.world.wrapped.get(id(value), value)) not in held:
                yield value


def _drops(state: TraceState) -> bool:
    """Whether the trace may have dropped what objects from outside held."""
    if state.world.context or state.world.taken:
        return True
    if any(not _is_followed(variable) for variable in state.world.changed.values()):
        return True
    found = (_lost_from(state, variable) for variable in state.world.changed.values())
    if any(not is_constant(value) for values in found for value in values):
        return True
    return any(
        not isinstance(state.world.owners[key], Known)
        or any(not is_constant(value) for value in _replaced(state, state.world.owners[key], name))
        for key, attributes in state.world.attributes.items()
        for name in attributes
    )


def _replaced(state: TraceState, owner: Any, name: str) -> list[object]:
    """What an object from outside held under a name that the trace has set."""
    if not isinstance(owner, Known):
        return []
    table = table_of(owner.value)
    before = table.get(name, _MISSING)
    after = state.world.attributes[id(owner.value)].get(name)
    same = isinstance(after, Known) and after.value is before
    return [] if before is _MISSING or same else [before]


def _is_followed(variable: Variable) -> bool:
    """Whether it is known what a changed container from outside has held."""
    match variable:
        case DictVariable(original=dict()) | SequenceVariable(original=list()):
            return True
        case CellVariable(original=types.CellType()) | SetVariable(original=set()):
            return True
    return False


def _lost_from(state: TraceState, variable: Variable) -> list[object]:
    """What was in a container from outside when the call began, and is not there any more."""
    match variable:
        case DictVariable(original=dict() as before, writes=writes):
            return _lost_from_dict(before, writes)
        case SequenceVariable(items=items, original=list() as given):
            held = list.copy(given)  # past what its class would say
            there = {_real_id(item, held) for item in raw_items(items)}
            return [real for real in _changed_ends(items, held) if id(real) not in there]
        case CellVariable(original=types.CellType() as cell):
            try:
                return [cell.cell_contents]
            except ValueError:
                return []
        case SetVariable(items=items, original=set() as before):
            there = {id(item) for item in items} | {
                _real_id(item.variable, []) for item in items if isinstance(item, ObjectKey)
            }
            return [real for real in set.__iter__(before) if id(real) not in there]
    return []


def _changed_ends(items: list[Variable], before: list[object]) -> list[object]:
    """Those elements of a list from outside that a trace may have taken out."""
    found = open_of(items)
    if found is None:
        return before
    first, last = found.taken()
    return [*before[:first], *before[len(before) - last :]]


def _lost_from_dict(before: dict[Any, Any], writes: list[tuple[str, Any]]) -> list[object]:
    found: list[object] = []
    for kind, key in writes:
        if kind == "clear":
            return [*dict.keys(before), *dict.values(before)]
        real = real_key(key)
        if kind != "front" and dict.__contains__(before, real):
            held = dict.__getitem__(before, real)
            found += [held] if kind == "set" else [real, held]
    return found


def _real_id(item: Any, before: list[object]) -> int:
    """The id of the object from outside that an element is; 0 if it is none."""
    place = getattr(item, "position", None)
    if place is not None:
        return id(before[place])
    if isinstance(item, UnreadVariable | Known):
        return id(item.value)
    return id(getattr(item, "original", None))
