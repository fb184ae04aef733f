"""`repr` of tracked containers, as their classes write it."""

from __future__ import annotations

import collections
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.statics import is_python, static_attribute
from plait_bytecode_tracer.shapes.arithmetic import concrete
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    SequenceVariable,
    SetVariable,
    Variable,
    ViewVariable,
    key_variable,
)

_BRACKETS = {list: "[]", tuple: "()", dict: "{}", set: "{}"}


def represent(frame: Frame, value: Variable) -> str:
    """`repr(value)`; what it contains itself is left out as Python does."""
    active = frame.state.representing
    kind = getattr(value, "kind", object)
    own = static_attribute(kind, "__repr__")
    if is_python(own) or kind is collections.OrderedDict:
        return _called(frame, own, value)
    if any(inner is value for inner in active):
        return _cut(kind)
    active.append(value)
    try:
        return _written(frame, value)
    finally:
        active.pop()


def represent_set(frame: Frame, owner: Variable, storage: SetVariable) -> str:
    """`set.__repr__(owner)` of an instance of a class that inherits from a set."""
    active, name = frame.state.representing, type_of(owner).__name__
    if any(inner is owner for inner in active):
        return f"{name}(...)"
    if not storage.items:
        return f"{name}()"
    active.append(owner)
    try:
        inner = ", ".join([_of(frame, item) for item in elements(frame, owner)])
    finally:
        active.pop()
    return f"{name}({{{inner}}})"


def _called(frame: Frame, method: Any, value: Variable) -> str:
    if not is_python(method):
        raise TraceBreakError("GB0008", f"repr of a {getattr(value, 'kind', object).__name__}")
    found = concrete(frame.call(constant(method), [value], {}))
    if not isinstance(found, Known) or not isinstance(found.value, str):
        fails(TypeError, "__repr__ returned non-string")
    return found.value


def _cut(kind: type) -> str:
    """What stands for a container inside of itself."""
    if kind in (list, tuple, dict):
        return "...".join(_BRACKETS[kind])
    if kind in (set, frozenset):
        return f"{kind.__name__}(...)"
    raise TraceBreakError("GB0008", f"repr of a {kind.__name__} that contains itself")


def _written(frame: Frame, value: Variable) -> str:
    match value:
        case SequenceVariable(kind=kind) if kind in (list, tuple):
            inner = ", ".join(_of(frame, item) for item in value.items)
            left, right = _BRACKETS[kind][0], _BRACKETS[kind][1]
            comma = "," if kind is tuple and len(value.items) == 1 else ""
            return f"{left}{inner}{comma}{right}"
        case SequenceVariable(kind=kind) if kind is torch.Size:
            return f"torch.Size([{', '.join(_of(frame, item) for item in value.items)}])"
        case DictVariable(kind=kind) if kind is dict:
            pairs = [
                f"{_of(frame, key_variable(key))}: {_of(frame, item)}"
                for key, item in value.items.items()
            ]
            return f"{{{', '.join(pairs)}}}"
        case SetVariable(kind=kind) if value.items:
            inner = ", ".join(_of(frame, key_variable(item)) for item in value.items)
            return f"{{{inner}}}" if kind is set else f"{kind.__name__}({{{inner}}})"
        case SetVariable(kind=kind):
            return f"{kind.__name__}()"
        case ViewVariable():
            inner = ", ".join(_of(frame, item) for item in elements(frame, value))
            return f"{value.kind.__name__}([{inner}])"
    raise TraceBreakError("GB0008", "repr of such a container")


def _of(frame: Frame, value: Variable) -> str:
    """The representation of an element."""
    if isinstance(value, SequenceVariable | DictVariable | SetVariable | ViewVariable):
        return represent(frame, value)
    if isinstance(value, Known) and type(value.value) in (bool, float, str, type(None)):
        return repr(value.value)
    if isinstance(value, Known) and type(value.value) is int and value.value.bit_length() < 64:
        return repr(value.value)
    found = concrete(frame.call(constant(repr), [value], {}))
    if isinstance(found, Known) and isinstance(found.value, str):
        return found.value
    raise TraceBreakError("GB0008", "repr of an element that is not known")
