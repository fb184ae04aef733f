"""Builtin functions about objects: their class, attributes, length."""

from __future__ import annotations

import sys
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import (
    PythonError,
    exception_class,
    fails,
    python_error,
)
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.making.building import call_metaclass
from plait_bytecode_tracer.objects.attributes import (
    call_method,
    find_attribute,
    load_attribute,
    store_attribute,
)
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.objects import guarded_value
from plait_bytecode_tracer.objects.standins import stand_in
from plait_bytecode_tracer.objects.statics import MISSING, guard_class, static_attribute
from plait_bytecode_tracer.objects.stores import delete_object_attribute
from plait_bytecode_tracer.outside.functions import settled
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.shapes.arithmetic import as_length, concrete
from plait_bytecode_tracer.shapes.attributes import size_of
from plait_bytecode_tracer.tensors.function_modes import through_mode
from plait_bytecode_tracer.tensors.patches import require_own
from plait_bytecode_tracer.values.classes import name_in_errors, type_of
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.keys import keep_distinct
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.open_lists import OpenList
from plait_bytecode_tracer.values.plain import is_empty
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    CallableVariable,
    DictVariable,
    FunctionVariable,
    GetterVariable,
    IdVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    OpaqueVariable,
    PartialVariable,
    SequenceVariable,
    SetVariable,
    SuperVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
    ViewVariable,
)


@builtin(len)
def len_(frame: Frame, value: Variable) -> Variable:
    match value:
        case SequenceVariable(items=OpenList() as items) if items.is_open:
            return items.length()
        case SequenceVariable() | DictVariable() | SetVariable():
            return constant(len(value.items))
        case ViewVariable():
            return constant(len(value.owner.items))
        case TensorVariable():
            intercepted = through_mode(frame, len, [value], {})
            if intercepted is not None:
                return intercepted
            require_own(frame.state, "__len__")
            if value.fake._has_symbolic_sizes_strides and value.fake.dim():
                return size_of(frame, value, 0)
            return constant(len(value.fake))
        case Known(real) if is_constant(real):
            return _real_length(real)
        case SymbolVariable(kind=kind) if kind in (str, bytes) and value.hint is not None:
            return value.owner.derive(len, [value])
    cls = type_of(value)
    if static_attribute(cls, "__len__") is MISSING:
        guard_class(frame, cls, "__len__")
        fails(TypeError, f"object of type {name_in_errors(cls)!r} has no len()")
    found = call_method(frame, value, "__len__", [])
    if isinstance(found, SymbolVariable):
        known = as_length(found)
        if known is not None:
            return known
        found = concrete(found)
    if not isinstance(found, Known) or not is_constant(found.value):
        raise TraceBreakError("GB0006", "__len__ gives no length")
    given = found.value
    return _real_length(stand_in(cls, {"__len__": lambda self: given}))


def _real_length(value: Any) -> Variable:
    try:
        return constant(len(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise python_error(error) from error


@builtin(type)
def type_(frame: Frame, value: Variable, *rest: Variable, **kwargs: Variable) -> Variable:
    if rest or kwargs:
        return call_metaclass(frame, type, [value, *rest], kwargs)
    return constant(type_of(value))


def _name(frame: Frame, name: Variable) -> Any:
    """The name of an attribute that a function is given."""
    if not issubclass(type_of(name), str):
        fails(TypeError, f"attribute name must be string, not {type_of(name).__name__!r}")
    return guarded_value(frame, name)


@builtin(getattr)
def getattr_(
    frame: Frame, owner: Variable, name: Variable, default: Variable | None = None
) -> Variable:
    try:
        return load_attribute(frame, owner, _name(frame, name))
    except PythonError as error:
        if default is None or not issubclass(exception_class(error.value), AttributeError):
            raise
        return default


@builtin(hasattr)
def hasattr_(frame: Frame, owner: Variable, name: Variable) -> Variable:
    try:
        return constant(find_attribute(frame, owner, _name(frame, name)) is not None)
    except PythonError as error:
        if not issubclass(exception_class(error.value), AttributeError):
            raise
        return constant(False)


@builtin(setattr)
def setattr_(frame: Frame, owner: Variable, name: Variable, value: Variable) -> Variable:
    store_attribute(frame, owner, _name(frame, name), value)
    return constant(None)


@builtin(delattr)
def delattr_(frame: Frame, owner: Variable, name: Variable) -> Variable:
    delete_object_attribute(frame, owner, _name(frame, name))
    return constant(None)


@builtin(callable)
def callable_(frame: Frame, value: Variable) -> Variable:
    if isinstance(value, ObjectVariable):
        return constant(static_attribute(value.cls, "__call__") is not MISSING)
    if isinstance(value, Known):
        return constant(callable(value.value))
    if isinstance(value, OpaqueVariable):
        return constant(callable(value.fake))
    callables = FunctionVariable | BoundVariable | MethodVariable | PartialVariable
    return constant(isinstance(value, callables | CallableVariable | GetterVariable))


@builtin(super)
def super_(frame: Frame, cls: Variable | None = None, instance: Variable | None = None) -> Variable:
    if cls is None:
        cls, instance = _implied(frame)
    if not isinstance(cls, Known) or not is_a(cls.value, type):
        kind = type_of(cls).__name__
        fails(TypeError, f"super() argument 1 must be a type, not {kind}")
    if instance is None or (isinstance(instance, Known) and instance.value is None):
        raise TraceBreakError("GB0007", "super() without an object")
    is_class = isinstance(instance, Known) and is_a(instance.value, type)
    if isinstance(instance, Known) and is_class and cls.value in instance.value.__mro__:
        return SuperVariable(cls.value, instance, instance.value)
    kind_of_it = type_of(instance)
    if cls.value not in kind_of_it.__mro__:
        text = "obj must be an instance or subtype of type"
        if sys.version_info >= (3, 13):
            shown = plain_value(instance).__name__ if is_class else kind_of_it.__name__
            text = f"obj ({'type' if is_class else 'instance of'} {shown}) is not an instance "
            text += f"or subtype of type ({cls.value.__name__})."
        fails(TypeError, f"super(type, obj): {text}")
    return SuperVariable(cls.value, instance, kind_of_it)


def _implied(frame: Frame) -> tuple[Variable, Variable]:
    """What `super()` takes from the method that calls it."""
    if not frame.code.co_argcount:
        fails(RuntimeError, "super(): no arguments")
    first = frame.code.co_varnames[0]
    cell = frame.cells.get(first)
    instance = frame.local(first) or (cell.content if cell is not None else None)
    if instance is None:
        fails(RuntimeError, "super(): arg[0] deleted")
    if "__class__" not in frame.code.co_freevars:
        fails(RuntimeError, "super(): __class__ cell not found")
    cls = frame.cells["__class__"]
    if cls.content is not None:
        return cls.content, instance
    if cls.original is None or cls.is_cleared or is_empty(cls.original):
        fails(RuntimeError, "super(): empty __class__ cell")
    cls.content = frame.state.wrap(cls.original.cell_contents, cls.source)
    return cls.content, instance


@builtin(object)
def object_(frame: Frame) -> Variable:
    return ObjectVariable(object)


@builtin(id)
def id_(frame: Frame, value: Variable) -> Variable:
    if isinstance(value, Known) and is_constant(value.value):  # which may be another object later
        raise TraceBreakError("GB0009", "the id of an object")
    keep_distinct(frame, value)
    held = settled(frame.state, value)
    source = getattr(held, "source", None)
    real = held.value if isinstance(held, Known) else getattr(held, "original", None)
    if source is None or real is None:
        return IdVariable(held)
    code = f"{frame.state.constants.name(id)}({source.code})"
    return IdVariable(held, Source(code, f"id({source.text})", source), id(real))
