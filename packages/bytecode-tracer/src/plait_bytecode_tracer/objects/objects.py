"""Python's object model: how attributes of instances are found and bound."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import inspect
import threading
import types
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.objects import exception_field, keeps_field
from plait_bytecode_tracer.exceptions.raising import PythonError, exception_class, fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.objects.class_methods import bind_to_class
from plait_bytecode_tracer.objects.class_writes import written_to_class
from plait_bytecode_tracer.objects.containers import describe, get_item, plain_value
from plait_bytecode_tracer.objects.statics import (
    DELETED,
    MISSING,
    builtin_base,
    call_real,
    class_of,
    guard_class,
    guard_descriptor,
    guard_order,
    is_data_descriptor,
    is_fixed_class,
    is_python,
    is_slot,
    refuse,
    static_attribute,
)
from plait_bytecode_tracer.objects.twin_attributes import ABSENT_OF_TWIN, is_seen, of_twin
from plait_bytecode_tracer.objects.writes import write_attribute, write_entry
from plait_bytecode_tracer.outside.assumptions import guard_no_own, guard_no_variable
from plait_bytecode_tracer.outside.containers import wrap_storage
from plait_bytecode_tracer.outside.liveness import is_held
from plait_bytecode_tracer.outside.tables import (
    is_own_table,
    own_dict,
    refuse_shared_table,
    thread_source,
    written_globals,
)
from plait_bytecode_tracer.tensors.asking import stand_in
from plait_bytecode_tracer.twins.registry import TWINS
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.constants import is_constant, is_definition
from plait_bytecode_tracer.values.lookup import is_a, is_asked
from plait_bytecode_tracer.values.plain import TUPLE_GETTER, VALUE_BASES, own_table, thread_table
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    DictVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    SequenceVariable,
    SuperVariable,
    Variable,
)


def object_attribute(frame: Frame, owner: Variable, name: str) -> Variable | None:
    """`owner.name` by the object's class; None where there is no such attribute."""
    cls = class_of(owner)
    getter = static_attribute(cls, "__getattribute__")
    fallback = static_attribute(cls, "__getattr__")
    guard_class(frame, cls, "__getattribute__")
    guard_class(frame, cls, "__getattr__")
    own_way = not isinstance(fallback, types.WrapperDescriptorType) and fallback is not MISSING
    try:
        if not isinstance(getter, types.WrapperDescriptorType):
            return by_hook(frame, owner, cls, "__getattribute__", getter, name)
        found = generic_attribute(frame, owner, name)
    except PythonError as error:
        if not issubclass(exception_class(error.value), AttributeError) or not own_way:
            raise
        found = None
    if found is None and own_way:
        return by_hook(frame, owner, cls, "__getattr__", fallback, name)
    return found


def by_hook(
    frame: Frame, owner: Variable, cls: type, hook: str, static: Any, name: str
) -> Variable:
    """`owner.name` as a hook of its class finds it, which may be any descriptor."""
    if is_python(static):
        return call_real(frame, static, [owner, constant(name)])
    method = bind_attribute(frame, owner, cls, hook, static)
    if method is None:
        fails(AttributeError, name)
    return frame.call(method, [constant(name)], {})


def generic_attribute(frame: Frame, owner: Variable, name: str) -> Variable | None:
    """`object.__getattribute__(owner, name)`."""
    cls = class_of(owner)
    if cls in TWINS and is_seen(frame) and isinstance(owner, ObjectVariable):
        found = of_twin(owner, name)
        if found is not None:
            return None if found is ABSENT_OF_TWIN else found
    static = static_attribute(cls, name)
    guard_class(frame, cls, name)
    guard_descriptor(frame, static)
    if static is not MISSING and is_data_descriptor(static) and hasattr(type(static), "__get__"):
        return _data_attribute(frame, owner, cls, name, static)
    own = instance_attribute(frame, owner, name)
    if own is not None:
        return own
    if static is MISSING:
        return None
    written = written_to_class(frame.state, cls, name)
    if written is not None:
        return written
    return bind_attribute(frame, owner, cls, name, static)


def instance_attribute(frame: Frame, owner: Variable, name: str) -> Variable | None:
    """What the object itself holds under a name, guarded; None if nothing."""
    if isinstance(owner, ObjectVariable):
        return owner.attributes.get(name)
    if not isinstance(owner, Known):
        return None
    real = owner.value
    written = frame.state.world.attributes.get(id(real), {}).get(name)
    if written is not None:
        return None if written is DELETED else written
    if is_a(real, threading.local):
        return _of_thread(frame, owner, name)
    hidden = is_asked(type(real))
    if is_a(real, types.ModuleType) and not hidden:
        return module_variable(frame, owner, name)
    try:
        table: dict[str, Any] = object.__getattribute__(real, "__dict__")
    except AttributeError:
        return None
    refuse_shared_table(frame.state, real, table)
    own_storage = _own_storage(frame, owner)
    if own_storage is not None:
        return own_storage.items.get(name)
    wrapped = frame.state.world.wrapped.get(id(table))
    if isinstance(wrapped, DictVariable) and wrapped.writes:
        return wrapped.items.get(name)
    source = source_of(frame, owner)
    if name not in table:
        if source is not None:
            guard_no_own(frame.state, source, name, plain=not hidden)
        return None
    if source is None:
        return frame.state.made.part(real, table[name], f"{{}}.__dict__[{name!r}]")
    own, source = source, source.entry(name)
    if hidden:
        source = own.own_attribute(name, frame.state.constants.name(own_table))
    return frame.state.wrap(table[name], source)


def _own_storage(frame: Frame, owner: Known) -> DictVariable | None:
    """The entries of a dict that holds its own attributes, where they are to be read as such.

    Else they are read as attributes, which takes less time in each call.
    """
    real = owner.value
    if owner.source is None or not is_own_table(frame.state, real, owner.source):
        return None
    known = frame.state.world.storages.get(id(real))
    is_written = isinstance(known, DictVariable) and known.writes
    asks = ("__getitem__", "__contains__")
    if not is_written and all(static_attribute(type(real), n) is vars(dict)[n] for n in asks):
        return None
    storage = storage_of(frame, owner)
    return storage if isinstance(storage, DictVariable) else None


def _of_thread(frame: Frame, owner: Known, name: str) -> Variable | None:
    """What a `threading.local` holds under a name, for the thread that calls."""
    if name == "__dict__":  # no descriptor of its class, if it is `threading.local` itself
        return own_attributes(frame, owner)
    table = thread_table(owner.value)
    wrapped = frame.state.world.wrapped.get(id(table))
    if isinstance(wrapped, DictVariable) and wrapped.writes:
        return wrapped.items.get(name)
    source = source_of(frame, owner)
    if source is None:
        raise TraceBreakError("GB0007", f"the attribute {name!r} of each thread's own")
    held = thread_source(frame.state, source)
    if name not in table:
        frame.state.require(held, Kind.LACKS, name, f"{source.text} has no own {name}")
        return None
    return frame.state.wrap(table[name], held.named(name))


def source_of(frame: Frame, owner: Known) -> Source | None:
    """Where an object is read from: one that came from a class is the same in each call.

    None of what each call makes anew.
    """
    if owner.source is not None or frame.state.made.depends(owner.value):
        return owner.source
    named = owner.value if is_a(owner.value, types.FunctionType) else type(owner.value)
    return frame.state.constants.source(owner.value, named.__qualname__)


def module_variable(frame: Frame, owner: Known, name: str) -> Variable | None:
    """What a module holds under a name, with what the trace has set."""
    module = owner.value
    table = written_globals(frame.state, own_table(module))
    if table is not None and type(module) is types.ModuleType:
        return table.items.get(name)
    if module is torch:
        found = stand_in(frame.function.code, frame.function.globals, name)
        if found is not None:
            return constant(found)
    value = getattr(module, name, MISSING)
    text = str(own_table(module).get("__name__", "a module"))
    source = owner.source or frame.state.constants.source(module, text)
    if value is MISSING:
        guard_no_variable(frame.state, source, module, name)
        return None
    own = type(module) is types.ModuleType and name in module.__dict__
    return frame.state.wrap(value, source.entry(name) if own else source.attribute(name))


def _data_attribute(
    frame: Frame, owner: Variable, cls: type, name: str, static: Any
) -> Variable | None:
    """An attribute that a property, slot or other data descriptor of the class gives."""
    if name == "__dict__" and isinstance(static, types.GetSetDescriptorType):
        return own_attributes(frame, owner)
    if name == "__class__" and isinstance(static, types.GetSetDescriptorType):
        return constant(type_of(owner))
    if isinstance(static, types.MemberDescriptorType | types.GetSetDescriptorType):
        return _slot(frame, owner, name, static)
    return bind_attribute(frame, owner, cls, name, static)


def _slot(frame: Frame, owner: Variable, name: str, static: Any) -> Variable | None:
    if isinstance(owner, ObjectVariable):
        if keeps_field(owner, static):
            return exception_field(owner, name)
        if isinstance(owner.base, Known) and static.__objclass__ in VALUE_BASES:
            return constant(static.__get__(owner.base.value))
        if name == "__weakref__" and isinstance(static, types.GetSetDescriptorType):
            return _weak_reference(frame, owner)
        if isinstance(owner.base, ObjectVariable) and name not in owner.attributes:  # a twin
            return generic_attribute(frame, owner.base, name)
        return owner.attributes.get(name)
    if not isinstance(owner, Known):
        return None
    written = frame.state.world.attributes.get(id(owner.value), {}).get(name)
    if written is not None:
        return None if written is DELETED else written
    value = getattr(owner.value, name, MISSING)
    source = owner.source if _is_settled(owner.value, value) else source_of(frame, owner)
    if value is MISSING:
        if source is not None:
            text = f"no attribute {name}"
            frame.state.require(source, Kind.NO_ATTRIBUTE, name, text)
        return None
    if source is None:
        return frame.state.made.part(owner.value, value, f"{{}}.{name}")
    return frame.state.wrap(value, source.attribute(name))


_DESCRIBING = (property, dataclasses.Field, inspect.Signature, inspect.Parameter)
"""Classes of what tells of definitions, which nobody changes once it is made."""


def _is_settled(owner: object, value: object) -> bool:
    """Whether a field stays what it is, without a guard; what it holds may change all the same."""
    if is_a(owner, inspect.Signature) or not is_a(owner, _DESCRIBING):
        return is_a(owner, inspect.Signature)
    return value is MISSING or is_constant(value) or is_definition(value)


def _weak_reference(frame: Frame, owner: ObjectVariable) -> Variable:
    """`__weakref__` of an object that the trace made: the first reference to it, if one lives."""
    known = frame.state.world.references.get(id(owner))
    if known is None:
        return constant(None)
    if not is_held(frame.state, known):
        raise TraceBreakError("GB0017", "a weak reference that the code may have dropped")
    return known


def own_attributes(frame: Frame, owner: Variable) -> Variable:
    """`owner.__dict__`; for an object of the trace, the dict itself; the owner if it is that."""
    if isinstance(owner, ObjectVariable):
        return DictVariable(owner.attributes)
    if isinstance(owner, Known) and owner.source is not None:
        if is_own_table(frame.state, owner.value, owner.source):
            return owner
        table = own_dict(frame.state, owner.value, owner.source)
        written = frame.state.world.attributes.get(id(owner.value), {})
        for name in [n for n in written if not is_slot(type(owner.value), n)]:
            write_entry(frame, table, name, written.pop(name))
        return table
    raise TraceBreakError("GB0007", f"the __dict__ of a {describe(owner)}")


# Binding.


def class_value(frame: Frame, cls: type, name: str, value: Any) -> Variable:
    """An attribute of a class, guarded unless the class cannot be changed."""
    made = frame.state.made
    if made.is_made(cls):
        holder = next((base for base in cls.__mro__ if name in base.__dict__), cls)
        if made.is_made(holder):
            return made.given(value, (holder, f"{{}}.__dict__[{name!r}]"))
        cls = holder
    if is_fixed_class(cls):
        return constant(value)
    if name == "__class__":  # through the class itself it would be the metaclass
        return constant(value)
    source = frame.state.constants.source(cls, cls.__qualname__).attribute(name)
    return frame.state.wrap(value, source)


def guard_shown(frame: Frame, value: Any) -> None:
    """A class whose text is asked for, or that of a member of an enum, keeps its names."""
    cls = type(value) if is_a(value, enum.Enum) else value
    if is_a(cls, type):
        for name in ("__name__", "__qualname__"):
            class_value(frame, cls, name, getattr(cls, name))


def bind_attribute(
    frame: Frame, owner: Variable, cls: type, name: str, static: Any, kind: type | None = None
) -> Variable | None:
    """A class attribute read through an instance: methods bound, properties called.

    `cls` is the class in which it was searched, `kind` that of the object where it is another.
    """
    given = frame.state.made.given
    match static:
        case types.FunctionType():
            function = class_value(frame, cls, name, static)
            return BoundVariable(function, owner)
        case staticmethod():
            return class_value(frame, cls, name, static.__func__)
        case classmethod():
            return bind_to_class(frame, static, constant(kind or cls))
        case property():
            if static.fget is None:
                refuse(frame, owner, static.__get__, name, "getter")
            return frame.call(given(static.fget), [owner], {})
        case functools.cached_property():
            return _cached_property(frame, owner, static)
        case (
            types.WrapperDescriptorType()
            | types.MethodDescriptorType()
            | functools._lru_cache_wrapper()
        ):
            return BoundVariable(given(static), owner)
        case types.ClassMethodDescriptorType():
            return MethodVariable(constant(kind or cls), name)
        case types.BuiltinFunctionType() | type():
            return class_value(frame, cls, name, static)
    if type(static) is TUPLE_GETTER:
        storage = storage_of(frame, owner)
        if isinstance(storage, SequenceVariable):
            return get_item(frame, storage, constant(static.__reduce__()[1][0]))
    getter = static_attribute(type(static), "__get__")
    if is_python(getter):
        args = [given(static), owner, constant(kind or cls)]
        return frame.call(given(getter), args, {})
    if getter is not MISSING:
        raise TraceBreakError("GB0007", f"the descriptor {name!r} of {cls.__name__}")
    return class_value(frame, cls, name, static)


def _cached_property(
    frame: Frame, owner: Variable, static: functools.cached_property[Any]
) -> Variable:
    name = static.attrname or ""
    made = call_real(frame, static.func, [owner])
    write_attribute(frame, owner, name, made)
    return made


def super_attribute(frame: Frame, owner: SuperVariable, name: str) -> Variable | None:
    """`super().name`."""
    receiver = owner.self
    if name == "__class__":
        return constant(super)
    order = owner.cls.__mro__
    is_class = isinstance(receiver, Known) and receiver.value is owner.cls
    guard_order(frame, owner.cls)
    for cls in order[order.index(owner.after) + 1 :]:
        guard_class(frame, cls, name)
        if name not in cls.__dict__:
            continue
        written = written_to_class(frame.state, cls, name)
        if written is not None:
            return written
        static = cls.__dict__[name]
        if not is_class:
            return bind_attribute(frame, receiver, cls, name, static, owner.cls)
        if isinstance(static, classmethod) and isinstance(receiver, Known):
            return bind_to_class(frame, static, receiver)
        if isinstance(static, types.ClassMethodDescriptorType):
            return BoundVariable(constant(static), receiver)
        plain = static.__func__ if isinstance(static, staticmethod) else static
        return class_value(frame, cls, name, plain)
    own = {"__thisclass__": constant(owner.after), "__self_class__": constant(owner.cls)}
    return receiver if name == "__self__" else own.get(name)


def special_method(frame: Frame, owner: Variable, name: str) -> Variable | None:
    """A method that Python finds on the class alone, bound; None if it has none."""
    if not isinstance(owner, ObjectVariable | Known):
        from plait_bytecode_tracer.objects.attributes import find_attribute

        return find_attribute(frame, owner, name)
    cls = class_of(owner)
    static = static_attribute(cls, name)
    guard_class(frame, cls, name)
    if static is MISSING:
        return None
    return bind_attribute(frame, owner, cls, name, static)


# Storage that instances inherit from builtin classes.


def storage_of(frame: Frame, owner: Variable) -> Variable | None:
    """The builtin container inside an instance of a class that inherits from one."""
    if isinstance(owner, ObjectVariable):
        return owner.base
    if not isinstance(owner, Known) or owner.source is None:
        return None
    base = builtin_base(type(owner.value))
    if base is None or base in (BaseException, collections.deque) or is_constant(owner.value):
        return None
    return wrap_storage(frame.state, owner.value, base, owner.source)


def guarded_value(frame: Frame, value: Variable) -> Any:
    """The Python value of a variable; of an instance of a class that inherits from text, a number
    or a container, what is inside, which is guarded."""
    return plain_value(storage_of(frame, value) or value)
