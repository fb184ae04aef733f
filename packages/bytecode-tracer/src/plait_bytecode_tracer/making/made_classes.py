"""Attributes of classes that the traced code made."""

from __future__ import annotations

import types
from typing import Any

from plait_bytecode_tracer.exceptions.raising import PythonError, exception_class
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.making.building import dict_proxy
from plait_bytecode_tracer.objects.class_methods import bind_to_class
from plait_bytecode_tracer.objects.class_writes import written_to_class
from plait_bytecode_tracer.objects.objects import bind_attribute, class_value
from plait_bytecode_tracer.objects.statics import MISSING, guard_class, is_python, static_attribute
from plait_bytecode_tracer.values.variables import Known, MethodVariable, Variable

_C_DESCRIPTORS = (
    *(types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType),
    types.MethodDescriptorType,
)


def made_class_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    """`cls.name` by the metaclass; None where there is no such attribute."""
    meta = type(owner.value)
    given = frame.state.made.given
    getter = static_attribute(meta, "__getattribute__")
    fallback = static_attribute(meta, "__getattr__")
    try:
        if is_python(getter):
            return frame.call(given(getter), [owner, constant(name)], {})
        found = type_attribute(frame, owner, name)
    except PythonError as error:
        if not issubclass(exception_class(error.value), AttributeError) or not is_python(fallback):
            raise
        found = None
    if found is None and is_python(fallback):
        return frame.call(given(fallback), [owner, constant(name)], {})
    return found


def type_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    """`type.__getattribute__(cls, name)`."""
    cls: type = owner.value
    meta = type(cls)
    of_meta = static_attribute(meta, name)
    kind = type(of_meta)
    is_data = hasattr(kind, "__set__") or hasattr(kind, "__delete__")
    if of_meta is not MISSING and is_data and hasattr(kind, "__get__"):
        if isinstance(of_meta, types.GetSetDescriptorType | types.MemberDescriptorType):
            return _field_of_type(frame, cls, name)
        return bind_attribute(frame, owner, meta, name, of_meta)
    guard_class(frame, cls, name)
    static = static_attribute(cls, name)
    written = written_to_class(frame.state, cls, name)
    if written is not None:
        return written
    if static is not MISSING:
        return _of_class(frame, owner, name, static)
    if of_meta is not MISSING:
        return bind_attribute(frame, owner, meta, name, of_meta)
    return None


def _field_of_type(frame: Frame, cls: type, name: str) -> Variable | None:
    """What a class keeps in C: its name, bases, documentation."""
    if name == "__dict__":
        return dict_proxy(frame, cls)
    if name == "__class__":
        return constant(type(cls))
    try:
        value = type.__getattribute__(cls, name)
    except AttributeError:
        return None
    return frame.state.made.given(value, (cls, f"{{}}.{name}"))


def _of_class(frame: Frame, owner: Known, name: str, static: Any) -> Variable | None:
    """An attribute that a class or a base defines, read through the class."""
    cls = owner.value
    given = frame.state.made.given
    match static:
        case classmethod():
            return bind_to_class(frame, static, owner)
        case staticmethod():
            return class_value(frame, cls, name, static.__func__)
        case types.ClassMethodDescriptorType():
            return MethodVariable(owner, name)
        case types.FunctionType() | property():
            return class_value(frame, cls, name, static)
    if isinstance(static, _C_DESCRIPTORS):
        return given(static)
    getter = static_attribute(type(static), "__get__")
    if is_python(getter):
        return frame.call(given(getter), [given(static), constant(None), owner], {})
    if getter is not MISSING:
        value = getattr(cls, name)
        return given(value, (cls, f"{{}}.{name}"))
    return class_value(frame, cls, name, static)
