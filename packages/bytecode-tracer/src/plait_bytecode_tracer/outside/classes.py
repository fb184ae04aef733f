"""Classes that the call made before a break, by what they define, not by which they are.

A class that a function defines is another object in each call. What follows a break takes
it as it takes classes that the trace makes itself: its functions by their parts, all else
that it holds by value, guarded.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]  # it has no stub
import abc
import collections.abc
import enum
import sys
import types
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.guards import ABSENT, class_attribute
from plait_bytecode_tracer.outside.enums import TABLES, guard_members, is_told
from plait_bytecode_tracer.outside.functions import is_made_for_calls, is_passed, wrap_function
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.plain import TUPLE_GETTER, is_named_tuple
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import Known, SequenceVariable, Variable

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

_ABC_DATA: type = type(collections.abc.Sized.__dict__["_abc_impl"])
_HEAP_TYPE = 1 << 9
_OF_CLASSES = types.GetSetDescriptorType | types.MemberDescriptorType
_IN_C = types.WrapperDescriptorType | types.MethodDescriptorType
_CALLED_ON_THEIR_OWN = ("__del__", "__getattribute__")


def is_class_of_call(cls: type, source: Source) -> bool:
    """Whether a class may well be another object in the next call: a local one, passed."""
    if not is_passed(source) or not _is_local(cls):
        return False
    if str(cls.__module__).partition(".")[0] == "torch":
        return False
    if isinstance(cls, enum.EnumMeta) and not is_told(cls):
        return False
    if not all(map(_is_base, cls.__mro__)):
        return False
    return all(_is_metaclass(type(base)) for base in cls.__mro__) and all(
        _is_known(value) and name not in _CALLED_ON_THEIR_OWN for name, value in vars(cls).items()
    )


def _is_local(cls: type) -> bool:
    """Whether a class was defined by a call: those made by calls do not say where they were."""
    if "<locals>" in cls.__qualname__:
        return True
    if not is_named_tuple(cls) and not isinstance(cls, enum.EnumMeta):
        return False
    module = sys.modules.get(cls.__module__)
    return module is None or vars(module).get(cls.__qualname__) is not cls


_OF_C = (object, type, dict, list, tuple, set, frozenset, str, int, float, complex, bytes)
"""Classes of C that such classes may inherit from, beside those of exceptions."""


def _is_base(cls: type) -> bool:
    is_of_c = cls in _OF_C or (issubclass(cls, BaseException) and cls.__module__ == "builtins")
    return is_of_c or bool(cls.__flags__ & _HEAP_TYPE)


def _is_metaclass(cls: type) -> bool:
    """Whether it treats classes as Python's own metaclasses do, or by functions of its own."""
    if issubclass(cls, enum.EnumMeta):
        return cls is enum.EnumMeta
    if cls.__module__.partition(".")[0] == "torch":
        return False
    return all(map(_is_base, cls.__mro__))


def registers_nothing(cls: abc.ABCMeta) -> bool:
    """Whether no other class was told to count as one that inherits from an abstract class."""
    registered, *_ = _abc._get_dump(cls)
    return not registered


def _is_known(value: Any) -> bool:
    if isinstance(value, staticmethod | classmethod):
        return isinstance(value.__func__, types.FunctionType)
    if type(value) is property:
        parts = (value.fget, value.fset, value.fdel)
        return all(part is None or isinstance(part, types.FunctionType) for part in parts)
    if is_a(value, types.FunctionType | _OF_CLASSES | _IN_C) or is_constant(value):
        return True
    getter = class_attribute(type(value), "__get__")
    return type(value) is TUPLE_GETTER or getter is ABSENT or is_a(getter, types.FunctionType)


def wrap_class(state: TraceState, cls: type, source: Source) -> Variable:
    """A class that the call made, by its parts, guarded."""
    if is_class_of_call(type(cls), class_source(source)):
        state.wrap(type(cls), class_source(source))
    else:
        state.guard_type(source, cls)
    adopted = Known(cls, source)
    for other in state.made.adopted.values():
        assert other.source is not None
        text = f"{source.text} is not {other.source.text}"
        state.guard(source, f"{{}} is not {other.source.code}", text)
    state.made.adopted[id(cls)] = adopted
    state.world.wrapped[id(cls)] = adopted
    state.world.kept.append(cls)
    if isinstance(cls, abc.ABCMeta):
        if not registers_nothing(cls):
            raise TraceBreakError("GB0009", f"{cls.__qualname__}, with which classes register")
        check = f"{state.constants.name(registers_nothing)}({{}})"
        state.guard(source, check, f"no class registers with {source.text}")
    names = state.constants.name(tuple(vars(cls)))
    text = f"{source.text} defines the names that it did"
    state.guard(source, f"tuple({{}}.__dict__) == {names}", text)
    for name in ("__name__", "__qualname__"):
        state.wrap(getattr(cls, name), source.attribute(name))
    bases = state.wrap(cls.__bases__, source.attribute("__bases__"))
    if isinstance(bases, SequenceVariable):
        list(bases.items)  # each is guarded
    table = source.attribute("__dict__")
    if isinstance(cls, enum.EnumMeta):
        guard_members(state, cls, source)
    for name, value in vars(cls).items():
        if isinstance(cls, enum.EnumMeta) and (name in TABLES or type(value) is cls):
            continue
        _part(state, cls, value, table.item(repr(name), name))
    return adopted


def _part(state: TraceState, cls: type, value: Any, source: Source) -> None:
    """Guard what a class holds under a name, and remember what is not the same in each call."""
    if is_a(value, types.FunctionType):
        owner = value.__qualname__.rpartition(".")[0]
        made_with_it = owner in (cls.__qualname__, cls.__name__)  # the latter of named tuples
        by_typing = value.__module__ == "typing" and "<locals>" in value.__qualname__
        local = made_with_it or by_typing or is_made_for_calls(value, source)
        made = wrap_function(state, value, source) if local else state.wrap(value, source)
        state.made.variables[id(value)] = made
    elif isinstance(value, staticmethod | classmethod):
        state.guard_type(source, value)
        _part(state, cls, value.__func__, source.attribute("__func__"))
    elif isinstance(value, property):
        state.guard_type(source, value)
        for name in ("fget", "fset", "fdel"):
            _part(state, cls, getattr(value, name), source.attribute(name))
    elif type(value) is TUPLE_GETTER:
        state.guard_type(source, value)
        read = Source(f"{source.code}.__reduce__()[1]", source.text, source)
        state.guard_constant(value.__reduce__()[1], read)
    elif isinstance(value, _IN_C):
        state.guard_identity(source, value)
    elif isinstance(value, _OF_CLASSES) or type(value) is _ABC_DATA:
        state.guard_type(source, value)
    elif is_constant(value):
        state.guard_constant(value, source)
    else:
        state.made.variables[id(value)] = state.wrap(value, source)


def class_source(source: Source) -> Source:
    """The class of an object."""
    return Source(f"type({source.code})", f"type({source.text})", source)
