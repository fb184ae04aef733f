"""Setting and deleting attributes, as Python's object model says."""

from __future__ import annotations

import threading
import types
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.objects import keeps_field, set_exception_field
from plait_bytecode_tracer.exceptions.raising import fails, fails_attribute, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.making.building import delete_class_attribute, set_class_attribute
from plait_bytecode_tracer.objects.class_writes import write_class
from plait_bytecode_tracer.objects.objects import instance_attribute, special_method
from plait_bytecode_tracer.objects.statics import (
    DELETED,
    IMMUTABLE,
    MISSING,
    call_real,
    class_of,
    guard_class,
    guard_descriptor,
    is_data_descriptor,
    is_python,
    refuse,
    static_attribute,
)
from plait_bytecode_tracer.objects.twin_attributes import is_seen, require_settable
from plait_bytecode_tracer.objects.writes import fails_to_set, write_attribute
from plait_bytecode_tracer.twins.registry import TWINS
from plait_bytecode_tracer.values.classes import name_in_errors
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.variables import Known, ObjectVariable, Variable


def store_object_attribute(frame: Frame, owner: Variable, name: str, value: Variable) -> None:
    """`owner.name = value` by the object's class."""
    cls = class_of(owner)
    if cls in TWINS and is_seen(frame):
        require_settable(cls, name)
    if cls is types.FunctionType and name in ("__name__", "__qualname__", "__doc__"):
        real = plain_class(owner)
        if isinstance(value, Known) and value.value == getattr(real, name):
            return  # as functools.total_ordering does each time
    setter = static_attribute(cls, "__setattr__")
    guard_class(frame, cls, "__setattr__")
    if issubclass(cls, threading.local):
        raise TraceBreakError("GB0007", f"a write to {name!r} of each thread's own")
    if is_python(setter):
        call_real(frame, setter, [owner, constant(name), value])
    elif _is_own_slot(setter, "__setattr__"):
        generic_store(frame, owner, name, value)
    else:
        _call_hook(frame, owner, "__setattr__", [constant(name), value])


def _is_own_slot(static: Any, name: str) -> bool:
    """Whether a class has the hook that C gives it, and no method of another name in its place.

    An attribute dict has `__setattr__ = dict.__setitem__`.
    """
    return isinstance(static, types.WrapperDescriptorType) and static.__name__ == name


def _call_hook(frame: Frame, owner: Variable, hook: str, args: list[Variable]) -> None:
    """Call what a class has as its hook, which may be any descriptor or callable."""
    method = special_method(frame, owner, hook)
    if method is None:
        raise TraceBreakError("GB0007", f"{hook} of a {class_of(owner).__name__}")
    frame.call(method, args, {})


def generic_store(frame: Frame, owner: Variable, name: str, value: Variable) -> None:
    """`object.__setattr__(owner, name, value)`."""
    cls = class_of(owner)
    is_class = isinstance(owner, Known) and is_a(owner.value, type)
    if is_class and not frame.state.made.is_made(plain_class(owner)):
        write_class(frame.state, plain_class(owner), name, value)
        return
    static = static_attribute(cls, name)
    guard_class(frame, cls, name)
    guard_descriptor(frame, static)
    if static is not MISSING and hasattr(type(static), "__set__"):
        if isinstance(static, property):
            if static.fset is None:
                refuse(frame, owner, lambda real: static.__set__(real, None), name, "setter")
            call_real(frame, static.fset, [owner, value])
            return
        setter = static_attribute(type(static), "__set__")
        if is_python(setter):
            call_real(frame, setter, [frame.state.made.given(static), owner, value])
            return
        if is_class and isinstance(owner, Known):
            set_class_attribute(frame, owner, name, value)
            return
        if static is object.__dict__["__class__"] and isinstance(owner, ObjectVariable):
            set_class(owner, value)
            return
        if isinstance(owner, ObjectVariable) and keeps_field(owner, static):
            set_exception_field(frame, owner, name, value)
            return
        is_slot = isinstance(static, types.MemberDescriptorType)
        is_slot = is_slot and not static.__objclass__.__flags__ & IMMUTABLE
        if not is_slot and not (issubclass(cls, BaseException) and name.startswith("__")):
            raise TraceBreakError("GB0007", f"a write to {name!r}, which {cls.__name__} intercepts")
    if is_class and isinstance(owner, Known):
        set_class_attribute(frame, owner, name, value)
        return
    write_attribute(frame, owner, name, value)


def set_class(owner: ObjectVariable, value: Variable) -> None:
    """`owner.__class__ = value` for an object that the trace made."""
    wanted = plain_class(value)
    if wanted is None or owner.base is not None or not isinstance(wanted, type):
        raise TraceBreakError("GB0007", "a write to '__class__'")
    try:
        twin: object = object.__new__(owner.cls)
        object.__setattr__(twin, "__class__", wanted)
    except TypeError as error:
        raise python_error(error) from error
    owner.cls = wanted


def plain_class(owner: Variable) -> Any:
    """The class that a variable is."""
    return owner.value if isinstance(owner, Known) else None


def delete_object_attribute(frame: Frame, owner: Variable, name: str) -> None:
    """`del owner.name` by the object's class."""
    cls = class_of(owner)
    remover = static_attribute(cls, "__delattr__")
    guard_class(frame, cls, "__delattr__")
    if issubclass(cls, threading.local):
        raise TraceBreakError("GB0007", f"deleting {name!r} of each thread's own")
    if frame.state.made.is_made(plain_class(owner)) and not is_python(remover):
        delete_attribute(frame, owner, name)
        return
    if isinstance(owner, Known) and owner.source is None:
        raise TraceBreakError("GB0007", f"deleting {name!r} of a {cls.__name__}")
    if is_python(remover):
        call_real(frame, remover, [owner, constant(name)])
    elif _is_own_slot(remover, "__delattr__"):
        delete_attribute(frame, owner, name)
    else:
        _call_hook(frame, owner, "__delattr__", [constant(name)])


def delete_attribute(frame: Frame, owner: Variable, name: str) -> None:
    """`object.__delattr__(owner, name)`."""
    cls = class_of(owner)
    if isinstance(owner, Known) and frame.state.made.is_made(owner.value):
        delete_class_attribute(frame, owner, name)
        return
    if isinstance(owner, Known) and is_a(owner.value, type):
        raise TraceBreakError("GB0007", f"deleting {name!r} of the class {owner.value.__name__}")
    static = static_attribute(cls, name)
    guard_class(frame, cls, name)
    guard_descriptor(frame, static)
    if isinstance(static, property):
        if static.fdel is None:
            refuse(frame, owner, static.__delete__, name, "deleter")
        call_real(frame, static.fdel, [owner])
        return
    remover = static_attribute(type(static), "__delete__")
    if is_python(remover):
        call_real(frame, remover, [frame.state.made.given(static), owner])
        return
    is_slot = isinstance(static, types.MemberDescriptorType) and isinstance(owner, ObjectVariable)
    if static is not MISSING and remover is not MISSING and not is_slot:
        raise TraceBreakError("GB0007", f"deleting {name!r}, which {cls.__name__} intercepts")
    if instance_attribute(frame, owner, name) is None:
        if not cls.__dictoffset__ and static is MISSING:
            fails_to_set(name_in_errors(cls), name)
        if not cls.__dictoffset__ and not is_data_descriptor(static):
            fails(AttributeError, f"{name_in_errors(cls)!r} object attribute {name!r} is read-only")
        fails_attribute(f"{name_in_errors(cls)!r} object has no attribute {name!r}", owner, name)
    if isinstance(owner, ObjectVariable):
        del owner.attributes[name]
    else:
        write_attribute(frame, owner, name, DELETED)
