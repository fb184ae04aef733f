"""Attributes of real objects: functions, methods, classes and modules from outside."""

from __future__ import annotations

import enum
import types
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.making.made_classes import made_class_attribute
from plait_bytecode_tracer.objects.class_methods import bind_to_class
from plait_bytecode_tracer.objects.class_writes import written_to_class
from plait_bytecode_tracer.objects.objects import (
    bind_attribute,
    by_hook,
    class_value,
    generic_attribute,
    module_variable,
    object_attribute,
    own_attributes,
    source_of,
)
from plait_bytecode_tracer.objects.statics import (
    MISSING,
    MODULE_GETATTR,
    guard_class,
    guard_descriptor,
    guard_order,
    is_data_descriptor,
    is_python,
    static_attribute,
)
from plait_bytecode_tracer.outside.tables import global_table
from plait_bytecode_tracer.rules.registry import find_builtin
from plait_bytecode_tracer.values.constants import is_constant, is_definition
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.numpy_objects import is_numpy_constant
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    DictVariable,
    Known,
    Variable,
)

_OF_FUNCTIONS = frozenset(
    {
        *("__defaults__", "__kwdefaults__", "__doc__", "__name__", "__qualname__", "__module__"),
        "__annotations__",
    }
)
"""Attributes of functions that are not in their dict, and can be replaced."""


def known_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    """An attribute of a real object, by what kind of object it is."""
    real = owner.value
    stands_for = frame.state.made.variables.get(id(real))
    if stands_for is not None and not isinstance(stands_for, Known):
        from plait_bytecode_tracer.objects.attributes import find_attribute

        return find_attribute(frame, stands_for, name)
    if is_a(real, enum.Enum):
        return _member_attribute(frame, owner, name)
    if is_constant(real) or is_a(real, types.BuiltinFunctionType | types.CodeType):
        value = getattr(real, name, MISSING)
        if value is MISSING:
            return None
        if is_numpy_constant(real) and not (is_constant(value) or callable(value)):
            # It is made anew each time, as an iterator over its one element.
            raise TraceBreakError("GB0015", f"the attribute {name!r} of a scalar")
        return owner if value is real else constant(value)
    own_way = is_python(static_attribute(type(real), "__getattribute__"))
    if is_a(real, types.ModuleType) and not own_way:
        return module_variable(frame, owner, name)
    if is_a(real, type):
        return _type_attribute(frame, owner, name)
    if is_a(real, torch.nn.Module):
        return _module_attribute(frame, owner, name)
    if is_a(real, types.MethodType | types.FunctionType):
        return _real_function_attribute(frame, owner, name)
    return object_attribute(frame, owner, name)


def _member_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    """An attribute of an enum's member; what the user's Python gives is traced."""
    member, cls = owner.value, type(owner.value)
    static = static_attribute(cls, name)
    if not _is_of_enums(name, static):
        return object_attribute(frame, owner, name)
    value = getattr(member, name, MISSING)
    if value is MISSING:
        return None
    source = source_of(frame, owner)
    if name in ("value", "_value_") and source is not None and not _is_unchanging(value):
        return frame.state.wrap(value, source.entry("_value_"))
    return frame.state.made.part(member, value, f"{{}}.{name}")


def _is_of_enums(name: str, static: Any) -> bool:
    """Whether all enums have it, or the classes in C that they inherit from."""
    if is_a(static, _IN_C):
        return True
    is_property = isinstance(static, property) or type(static).__module__ == "enum"
    function = static.fget if is_property else static
    if is_python(function):
        return bool(function.__module__ == "enum")
    return is_property or name[:1] == name[-1:] == "_"


def _is_unchanging(value: Any) -> bool:
    """Whether a value says all there is to it."""
    return is_constant(value) or is_definition(value)


_IN_C = (
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType),
    *(types.ClassMethodDescriptorType, types.MemberDescriptorType, types.BuiltinFunctionType),
)
"""Classes of what classes in C define."""


def _real_function_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    real = owner.value
    if is_a(real, types.MethodType) and name == "__self__" and owner.source is not None:
        return frame.state.wrap(real.__self__, owner.source.attribute("__self__"))
    written = frame.state.world.attributes.get(id(real), {}).get(name)
    if written is not None:
        return written
    value = getattr(real, name, MISSING)
    origin = source_of(frame, owner) if is_a(real, types.FunctionType) else owner.source
    if value is MISSING:
        if origin is not None:
            frame.state.require(origin, Kind.NO_ATTRIBUTE, name, f"no attribute {name}")
        return None
    if name == "__dict__" and is_a(real, types.FunctionType) and owner.source is not None:
        return own_attributes(frame, owner)
    if name == "__globals__":
        return global_table(frame.state, real.__globals__)
    if name == "__builtins__":
        return global_table(frame.state, real.__builtins__)
    own = getattr(real, "__dict__", {})
    if name in _OF_FUNCTIONS and is_a(real, types.FunctionType):
        source = owner.source or frame.state.constants.source(real, real.__qualname__)
        return frame.state.wrap(value, source.attribute(name))
    if name == "__code__" and is_a(real, types.FunctionType):
        source = owner.source or frame.state.constants.source(real, real.__qualname__)
        frame.state.guard_identity(source.attribute(name), value)
        return constant(value)
    if name in own and origin is not None and is_a(real, types.FunctionType):
        return frame.state.wrap(value, origin.attribute(name))
    return frame.state.made.part(real, value, f"{{}}.{name}")


def _type_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    """`cls.name`, with the metaclass's data descriptors first."""
    cls: type = owner.value
    if frame.state.made.is_made(cls):
        return made_class_attribute(frame, owner, name)
    written = written_to_class(frame.state, cls, name)
    if written is not None:
        return written
    if name == "__mro__":
        guard_order(frame, cls)
        return constant(cls.__mro__)
    meta_static = static_attribute(type(cls), name)
    guard_class(frame, type(cls), name)
    guard_class(frame, type(cls), "__getattribute__")
    if is_python(static_attribute(type(cls), "__getattribute__")):
        return made_class_attribute(frame, owner, name)
    if name == "__dict__":
        table = frame.state.constants.source(cls, cls.__qualname__).attribute(name)
        return frame.state.wrap(cls.__dict__, table)
    if _comes_first(meta_static):
        guard_descriptor(frame, meta_static)
        return bind_attribute(frame, owner, type(cls), name, meta_static)
    static = static_attribute(cls, name)
    if isinstance(static, types.ClassMethodDescriptorType):  # bound anew at each look
        guard_class(frame, cls, name)
        return constant(getattr(cls, name))
    if static is MISSING:
        return _of_metaclass(frame, owner, name, meta_static)
    if isinstance(static, classmethod):
        guard_class(frame, cls, name)
        return bind_to_class(frame, static, owner)
    if isinstance(static, staticmethod):
        return class_value(frame, cls, name, static.__func__)
    if isinstance(static, property):
        guard_class(frame, cls, name)
        return constant(static)
    getter = static_attribute(type(static), "__get__")
    if is_python(getter):
        guard_class(frame, cls, name)
        guard_descriptor(frame, static)
        return frame.call(constant(getter), [constant(static), constant(None), owner], {})
    try:
        value = getattr(cls, name)
    except AttributeError:  # of a slot of the class itself
        return None
    return class_value(frame, cls, name, value)


def _comes_first(static: Any) -> bool:
    """Whether what a metaclass has under a name hides what its classes define."""
    if isinstance(static, property):
        return True
    is_data = static is not MISSING and is_data_descriptor(static)
    return is_data and is_python(static_attribute(type(static), "__get__"))


def _of_metaclass(frame: Frame, owner: Known, name: str, static: Any) -> Variable | None:
    """What a class gets from its metaclass under a name that neither it nor a base defines."""
    cls: type = owner.value
    if static is MISSING:
        guard_class(frame, cls, name)
        return _by_fallback(frame, owner, name)
    if isinstance(static, types.MethodDescriptorType) and find_builtin(static):
        return BoundVariable(constant(static), owner)
    if is_a(static, _IN_C):
        value = getattr(cls, name, MISSING)
        if value is MISSING:
            return _by_fallback(frame, owner, name)
        if name in ("__name__", "__qualname__"):
            return class_value(frame, cls, name, value)
        if name in ("__bases__", "__base__"):
            guard_order(frame, cls)
        return constant(value)
    guard_class(frame, cls, name)
    guard_descriptor(frame, static)
    if is_python(static):
        return BoundVariable(constant(static), owner)
    return bind_attribute(frame, owner, type(cls), name, static)


def _by_fallback(frame: Frame, owner: Known, name: str) -> Variable | None:
    """What `__getattr__` of a metaclass finds."""
    meta = type(owner.value)
    fallback = static_attribute(meta, "__getattr__")
    guard_class(frame, meta, "__getattr__")
    if fallback is MISSING:
        return None
    if fallback is _ENUM_FALLBACK:
        value = getattr(owner.value, name, MISSING)
        return None if value is MISSING else constant(value)
    return by_hook(frame, owner, meta, "__getattr__", fallback, name)


_ENUM_FALLBACK = static_attribute(enum.EnumMeta, "__getattr__")
"""What finds members by their names, in some versions of Python."""


def _module_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    module, source = owner.value, owner.source
    if source is None:
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a module made in the trace")
    getter = static_attribute(type(module), "__getattribute__")
    fallback = static_attribute(type(module), "__getattr__")
    guard_class(frame, type(module), "__getattribute__")
    guard_class(frame, type(module), "__getattr__")
    if is_python(getter):
        return object_attribute(frame, owner, name)
    found = generic_attribute(frame, owner, name)
    if found is not None:
        return found
    if fallback is MODULE_GETATTR:
        return module_entry(frame, owner, name)
    return bind_and_call_fallback(frame, owner, fallback, name)


def bind_and_call_fallback(frame: Frame, owner: Known, fallback: Any, name: str) -> Variable | None:
    """The attribute that a module's own `__getattr__` finds."""
    bound = bind_attribute(frame, owner, type(owner.value), "__getattr__", fallback)
    if bound is None:
        return None
    return frame.call(bound, [constant(name)], {})


def module_entry(frame: Frame, owner: Known, name: str) -> Variable | None:
    """A parameter, buffer or submodule by name, as `nn.Module.__getattr__` finds it."""
    module, source = owner.value, owner.source
    for kind in ("_parameters", "_buffers", "_modules"):
        table = module.__dict__.get(kind, {})
        written = _written_entry(frame, owner, kind)
        if written is not None:
            if name in written.items:
                return written.items[name]
        elif name in table and source is not None:
            return frame.state.wrap(table[name], source.parameter(kind, name))
        elif source is not None and kind in module.__dict__:
            text = f"{source.text} has no {name} among its {kind}"
            frame.state.require(source.entry(kind), Kind.LACKS, name, text)
    return None


def _written_entry(frame: Frame, owner: Known, kind: str) -> DictVariable | None:
    """A dict of the module that the trace itself has changed."""
    table = frame.state.world.wrapped.get(id(owner.value.__dict__.get(kind)))
    if isinstance(table, DictVariable) and id(table) in frame.state.world.changed:
        return table
    return None
