"""The class of a tracked value."""

from __future__ import annotations

import functools
import types
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.objects.containers import describe
from plait_bytecode_tracer.twins.registry import TWINS
from plait_bytecode_tracer.values.hook_numbers import HookNumber
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    BoundVariable,
    CallableVariable,
    CellVariable,
    CoroutineVariable,
    DictVariable,
    FrameVariable,
    FunctionVariable,
    GetterVariable,
    IdVariable,
    IteratorVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    PartialVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    SubclassVariable,
    SuperVariable,
    SymbolVariable,
    TensorVariable,
    TextVariable,
    TracebackVariable,
    Variable,
    ViewVariable,
)

_IMMUTABLE_TYPE = 1 << 8
"""The flag of types whose attributes cannot be set, as C's: Py_TPFLAGS_IMMUTABLETYPE."""


def name_in_errors(cls: type) -> str:
    """What C calls a class in the texts of errors: one of its own with its module."""
    if not cls.__flags__ & _IMMUTABLE_TYPE or cls.__module__ == "builtins":
        return cls.__name__
    return f"{cls.__module__}.{cls.__name__}"


def type_of(value: Variable) -> type:
    """The class of a tracked value."""
    match value:
        case TensorVariable() | SubclassVariable():
            return value.cls
        case ArrayVariable():
            from plait_bytecode_tracer.arrays.values import class_of_array

            return class_of_array(value)
        case Known():
            return type(value.value)
        case IdVariable() | HookNumber():
            return int
        case SequenceVariable() | DictVariable() | ViewVariable() | SetVariable():
            return value.kind
        case IteratorVariable() | CallableVariable():
            return value.kind
        case ObjectVariable():
            twin = TWINS.get(value.cls)
            return value.cls if twin is None else twin.kind
        case SymbolVariable():
            return value.kind
        case FunctionVariable():
            is_cached = "cache_parameters" in value.attributes and "__wrapped__" in value.attributes
            return functools._lru_cache_wrapper if is_cached else types.FunctionType
        case CellVariable():
            return types.CellType
        case SliceVariable():
            return slice
        case TextVariable():
            return str
        case BoundVariable(Known(types.WrapperDescriptorType())):
            return types.MethodWrapperType
        case BoundVariable(Known(types.MethodDescriptorType())):
            return types.BuiltinMethodType
        case BoundVariable():
            return types.MethodType
        case PartialVariable():
            return functools.partial
        case CoroutineVariable():
            return types.CoroutineType
        case TracebackVariable():
            return types.TracebackType
        case FrameVariable():
            return types.FrameType
        case GetterVariable():
            return value.kind
        case SuperVariable():
            return super
        case MethodVariable() if not isinstance(value.owner, FunctionVariable):
            return _class_of_method(value)
    raise TraceBreakError("GB0009", f"the class of a {describe(value)}")


def defined_as(method: MethodVariable) -> Any:
    """What the class of a method's object holds under the method's name; None if nothing."""
    owner = method.owner
    is_class = isinstance(owner, Known) and isinstance(owner.value, type)
    cls = owner.value if isinstance(owner, Known) and is_class else type_of(owner)
    found = (base.__dict__[method.name] for base in cls.__mro__ if method.name in base.__dict__)
    return next(found, None)


def _class_of_method(method: MethodVariable) -> type:
    """The class of the object that binds a method to what it was read from."""
    match defined_as(method):
        case types.WrapperDescriptorType():
            return types.MethodWrapperType
        case types.FunctionType():
            return types.MethodType
    return types.BuiltinMethodType
