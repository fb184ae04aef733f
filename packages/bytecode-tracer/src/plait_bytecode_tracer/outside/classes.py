"""Classes that the call made before a break, by what they define, not by which they are.

A class that a function defines is another object in each call. What follows a break takes
it as it takes classes that the trace makes itself: its functions by their parts, all else
that it holds by value, guarded.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.outside.functions import is_made_for_calls, is_passed, wrap_function
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import Known, SequenceVariable, Variable, is_constant

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

_HEAP_TYPE = 1 << 9
_OF_CLASSES = types.GetSetDescriptorType | types.MemberDescriptorType
_CALLED_ON_THEIR_OWN = ("__del__", "__getattribute__", "__init_subclass__", "__set_name__")


def is_class_of_call(cls: type, source: Source) -> bool:
    """Whether a class may well be another object in the next call: a plain local one, passed."""
    if type(cls) is not type or "<locals>" not in cls.__qualname__ or not is_passed(source):
        return False
    if str(cls.__module__).partition(".")[0] == "torch":
        return False
    if not all(base is object or base.__flags__ & _HEAP_TYPE for base in cls.__mro__):
        return False
    return all(type(base) is type for base in cls.__mro__) and all(
        _is_known(value) and name not in _CALLED_ON_THEIR_OWN for name, value in vars(cls).items()
    )


def _is_known(value: Any) -> bool:
    if isinstance(value, staticmethod | classmethod):
        return isinstance(value.__func__, types.FunctionType)
    if type(value) is property:
        parts = (value.fget, value.fset, value.fdel)
        return all(part is None or isinstance(part, types.FunctionType) for part in parts)
    if isinstance(value, types.FunctionType | _OF_CLASSES) or is_constant(value):
        return True
    return not hasattr(type(value), "__get__")


def wrap_class(state: TraceState, cls: type, source: Source) -> Variable:
    """A class that the call made, by its parts, guarded."""
    state.guard_type(source, cls)
    adopted = Known(cls, source)
    for other in state.made.adopted.values():
        assert other.source is not None
        text = f"{source.text} is not {other.source.text}"
        state.guard(source, f"{{}} is not {other.source.code}", text)
    state.made.adopted[id(cls)] = adopted
    state.wrapped[id(cls)] = adopted
    state.kept.append(cls)
    names = state.constants.name(tuple(vars(cls)))
    text = f"{source.text} defines the names that it did"
    state.guard(source, f"tuple({{}}.__dict__) == {names}", text)
    for name in ("__name__", "__qualname__"):
        state.wrap(getattr(cls, name), source.attribute(name))
    bases = state.wrap(cls.__bases__, source.attribute("__bases__"))
    if isinstance(bases, SequenceVariable):
        list(bases.items)  # each is guarded
    table = source.attribute("__dict__")
    for name, value in vars(cls).items():
        _part(state, value, table.item(repr(name), name))
    return adopted


def _part(state: TraceState, value: Any, source: Source) -> None:
    """Guard what a class holds under a name, and remember what is not the same in each call."""
    if isinstance(value, types.FunctionType):
        local = is_made_for_calls(value, source)
        made = wrap_function(state, value, source) if local else state.wrap(value, source)
        state.made.variables[id(value)] = made
    elif isinstance(value, staticmethod | classmethod):
        state.guard_type(source, value)
        _part(state, value.__func__, source.attribute("__func__"))
    elif isinstance(value, property):
        state.guard_type(source, value)
        for name in ("fget", "fset", "fdel"):
            _part(state, getattr(value, name), source.attribute(name))
    elif isinstance(value, _OF_CLASSES):
        state.guard_type(source, value)
    elif is_constant(value):
        state.guard_constant(value, source)
    else:
        state.made.variables[id(value)] = state.wrap(value, source)


def class_source(source: Source) -> Source:
    """The class of an object."""
    return Source(f"type({source.code})", f"type({source.text})", source)
