"""Python's object model: how attributes of instances are found, set and deleted."""

from __future__ import annotations

import collections
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.objects import (
    exception_field,
    keeps_field,
    set_exception_field,
)
from plait_bytecode_tracer.exceptions.raising import (
    PythonError,
    exception_class,
    fails,
    fails_attribute,
    python_error,
)
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.objects.class_writes import write_class, written_to_class
from plait_bytecode_tracer.objects.containers import describe, dict_delete, dict_set
from plait_bytecode_tracer.outside.assumptions import guard_class_attribute, guard_no_own
from plait_bytecode_tracer.outside.containers import wrap_storage
from plait_bytecode_tracer.outside.liveness import is_held
from plait_bytecode_tracer.outside.tables import global_table, own_dict, written_globals
from plait_bytecode_tracer.values.lookup import is_a, is_asked
from plait_bytecode_tracer.values.plain import STORED_KINDS, VALUE_BASES, own_table
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    DictVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    SuperVariable,
    Variable,
    is_constant,
)

MISSING = object()
"""No attribute of that name."""
DELETED = Known(MISSING)
"""An attribute that the trace has deleted."""
BUILTIN_BASES: tuple[type, ...] = (
    *(dict, list, tuple, set, frozenset, collections.OrderedDict, collections.defaultdict),
    *(collections.deque, BaseException, *VALUE_BASES),
)
MODULE_CALL: Any = torch.nn.Module.__call__
"""As it is when this is imported: a program may replace it."""
MODULE_GETATTR: Any = torch.nn.Module.__getattr__
IMMUTABLE = 1 << 8
"""The flag of classes whose attributes cannot be set."""


def static_attribute(cls: type, name: str) -> Any:
    """What a class or its bases define under a name, without binding; else MISSING."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def is_python(function: Any) -> bool:
    """Whether an attribute of a class is a function written in Python."""
    return isinstance(function, types.FunctionType)


def class_of(value: Variable) -> type:
    """The class of an object, its own or real."""
    if isinstance(value, ObjectVariable):
        return value.cls
    if isinstance(value, Known):
        if type(value.value) in weakref.ProxyTypes:  # it does what its object does
            raise TraceBreakError("GB0009", "a proxy of an object")
        return type(value.value)
    raise TraceBreakError("GB0007", f"an attribute of a {describe(value)}")


def refuse(
    frame: Frame, owner: Variable, function: Callable[[Any], Any], name: str, wanted: str
) -> NoReturn:
    """Raise what a property says that lacks a function: it may know its name or not."""
    cls = class_of(owner)
    real = frame.state.made.stand_in(owner)
    if isinstance(real, cls):
        try:
            function(real)
        except AttributeError as error:
            raise python_error(error) from error
    fails(AttributeError, f"property {name!r} of {cls.__qualname__!r} object has no {wanted}")


# Reading.


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
            return _by_hook(frame, owner, cls, "__getattribute__", getter, name)
        found = generic_attribute(frame, owner, name)
    except PythonError as error:
        if not issubclass(exception_class(error.value), AttributeError) or not own_way:
            raise
        found = None
    if found is None and own_way:
        return _by_hook(frame, owner, cls, "__getattr__", fallback, name)
    return found


def _by_hook(
    frame: Frame, owner: Variable, cls: type, hook: str, static: Any, name: str
) -> Variable:
    """`owner.name` as a hook of its class finds it, which may be any descriptor."""
    from plait_bytecode_tracer.frames.calls import call

    if is_python(static):
        return _call_real(frame, static, [owner, constant(name)])
    method = bind_attribute(frame, owner, cls, hook, static)
    if method is None:
        fails(AttributeError, name)
    return call(frame, method, [constant(name)], {})


def _call_real(frame: Frame, function: Any, args: list[Variable]) -> Variable:
    from plait_bytecode_tracer.frames.calls import call

    return call(frame, frame.state.made.given(function), args, {})


def generic_attribute(frame: Frame, owner: Variable, name: str) -> Variable | None:
    """`object.__getattribute__(owner, name)`."""
    cls = class_of(owner)
    static = static_attribute(cls, name)
    guard_class(frame, cls, name)
    guard_descriptor(frame, static)
    if static is not MISSING and _is_data_descriptor(static) and hasattr(type(static), "__get__"):
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


def guard_class(frame: Frame, cls: type, name: str) -> None:
    """A class from outside keeps what it defines under a name, unless it cannot be changed."""
    if (id(cls), name) in frame.state.class_guards:
        return
    if frame.state.made.is_made(cls):
        for base in outer_bases(frame, cls):
            guard_class(frame, base, name)
    elif not is_fixed_class(cls):
        guard_class_attribute(frame.state, cls, name)


def is_fixed_class(cls: type) -> bool:
    """Whether nothing can set what a class and its bases define."""
    if not cls.__flags__ & IMMUTABLE:
        return False
    return all(base.__flags__ & IMMUTABLE for base in cls.__mro__)


def guard_descriptor(frame: Frame, static: Any) -> None:
    """What a class holds under a name stays a descriptor, or none, of the kind that it is."""
    if static is not MISSING and not type(static).__flags__ & IMMUTABLE:
        for name in ("__get__", "__set__", "__delete__"):
            guard_class(frame, type(static), name)


def guard_order(frame: Frame, cls: type) -> None:
    """A class from outside keeps its bases, and the order in which they are searched."""
    if frame.state.made.is_made(cls):
        for base in outer_bases(frame, cls):
            guard_order(frame, base)
    elif not is_fixed_class(cls):
        source = frame.state.constants.source(cls, cls.__qualname__).attribute("__mro__")
        text = f"{cls.__qualname__} keeps its bases"
        frame.state.require(source, Kind.IDENTITY, cls.__mro__, text)


def outer_bases(frame: Frame, cls: type) -> list[type]:
    """The classes from outside that classes of the trace inherit from."""
    is_made = frame.state.made.is_made
    inner = [base for base in cls.__mro__ if is_made(base)]
    return [base for made in inner for base in made.__bases__ if not is_made(base)]


def _is_data_descriptor(static: Any) -> bool:
    return hasattr(type(static), "__set__") or hasattr(type(static), "__delete__")


def instance_attribute(frame: Frame, owner: Variable, name: str) -> Variable | None:
    """What the object itself holds under a name, guarded; None if nothing."""
    if isinstance(owner, ObjectVariable):
        return owner.attributes.get(name)
    if not isinstance(owner, Known):
        return None
    real = owner.value
    written = frame.state.attributes.get(id(real), {}).get(name)
    if written is not None:
        return None if written is DELETED else written
    hidden = is_asked(type(real))
    if is_a(real, types.ModuleType) and not hidden:
        return module_variable(frame, owner, name)
    try:
        table: dict[str, Any] = object.__getattribute__(real, "__dict__")
    except AttributeError:
        return None
    wrapped = frame.state.wrapped.get(id(table))
    if isinstance(wrapped, DictVariable) and wrapped.writes:
        return wrapped.items.get(name)
    if name not in table:
        if owner.source is not None:
            guard_no_own(frame.state, owner.source, name, plain=not hidden)
        return None
    source = owner.source
    if source is None and _may_change(frame, real, table[name]):
        source = frame.state.constants.source(real, type(real).__name__)
    if source is None:
        return frame.state.made.part(real, table[name], f"{{}}.__dict__[{name!r}]")
    own, source = source, source.entry(name)
    if hidden:
        source = own.own_attribute(name, frame.state.constants.name(own_table))
    return frame.state.wrap(table[name], source)


def _may_change(frame: Frame, owner: object, value: object) -> bool:
    """Whether an object of no source, which is the same in each call, holds a container."""
    return type(value) in STORED_KINDS and not frame.state.made.depends(owner)


def module_variable(frame: Frame, owner: Known, name: str) -> Variable | None:
    """What a module holds under a name, with what the trace has set."""
    module = owner.value
    table = written_globals(frame.state, own_table(module))
    if table is not None and type(module) is types.ModuleType:
        return table.items.get(name)
    value = getattr(module, name, MISSING)
    if value is MISSING:
        return None
    if owner.source is None:
        return constant(value)
    own = type(module) is types.ModuleType and name in module.__dict__
    return frame.state.wrap(
        value, owner.source.entry(name) if own else owner.source.attribute(name)
    )


def _data_attribute(
    frame: Frame, owner: Variable, cls: type, name: str, static: Any
) -> Variable | None:
    """An attribute that a property, slot or other data descriptor of the class gives."""
    if name == "__dict__" and isinstance(static, types.GetSetDescriptorType):
        return own_attributes(frame, owner)
    if name == "__class__" and isinstance(static, types.GetSetDescriptorType):
        from plait_bytecode_tracer.values.classes import type_of

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
    written = frame.state.attributes.get(id(owner.value), {}).get(name)
    if written is not None:
        return None if written is DELETED else written
    value = getattr(owner.value, name, MISSING)
    if value is MISSING:
        if owner.source is not None:
            text = f"no attribute {name}"
            frame.state.require(owner.source, Kind.NO_ATTRIBUTE, name, text)
        return None
    if owner.source is None:
        return frame.state.made.part(owner.value, value, f"{{}}.{name}")
    return frame.state.wrap(value, owner.source.attribute(name))


def _weak_reference(frame: Frame, owner: ObjectVariable) -> Variable:
    """`__weakref__` of an object that the trace made: the first reference to it, if one lives."""
    known = frame.state.references.get(id(owner))
    if known is None:
        return constant(None)
    if not is_held(frame.state, known):
        raise TraceBreakError("GB0017", "a weak reference that the code may have dropped")
    return known


def own_attributes(frame: Frame, owner: Variable) -> Variable:
    """`owner.__dict__`; for an object of the trace, the dict itself."""
    if isinstance(owner, ObjectVariable):
        return DictVariable(owner.attributes)
    if isinstance(owner, Known) and owner.source is not None:
        table = own_dict(frame.state, owner.value, owner.source)
        written = frame.state.attributes.get(id(owner.value), {})
        for name in [n for n in written if not _is_slot(type(owner.value), n)]:
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


def bind_attribute(
    frame: Frame, owner: Variable, cls: type, name: str, static: Any, kind: type | None = None
) -> Variable | None:
    """A class attribute read through an instance: methods bound, properties called.

    `cls` is the class in which it was searched, `kind` that of the object where it is another.
    """
    from plait_bytecode_tracer.frames.calls import call
    from plait_bytecode_tracer.objects.class_methods import bind_to_class

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
            return call(frame, given(static.fget), [owner], {})
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
    getter = static_attribute(type(static), "__get__")
    if is_python(getter):
        args = [given(static), owner, constant(kind or cls)]
        return call(frame, given(getter), args, {})
    if getter is not MISSING:
        raise TraceBreakError("GB0007", f"the descriptor {name!r} of {cls.__name__}")
    return class_value(frame, cls, name, static)


def _cached_property(
    frame: Frame, owner: Variable, static: functools.cached_property[Any]
) -> Variable:
    name = static.attrname or ""
    made = _call_real(frame, static.func, [owner])
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
            from plait_bytecode_tracer.objects.class_methods import bind_to_class

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


# Writing.


def store_object_attribute(frame: Frame, owner: Variable, name: str, value: Variable) -> None:
    """`owner.name = value` by the object's class."""
    cls = class_of(owner)
    if cls is types.FunctionType and name in ("__name__", "__qualname__", "__doc__"):
        real = plain_class(owner)
        if isinstance(value, Known) and value.value == getattr(real, name):
            return  # as functools.total_ordering does each time
    setter = static_attribute(cls, "__setattr__")
    guard_class(frame, cls, "__setattr__")
    if issubclass(cls, threading.local):
        raise TraceBreakError("GB0007", f"a write to {name!r} of each thread's own")
    if is_python(setter):
        _call_real(frame, setter, [owner, constant(name), value])
    elif isinstance(owner, ObjectVariable) and getattr(setter, "__name__", "") != "__setattr__":
        _call_real(frame, setter, [owner, constant(name), value])  # a method of another name
    else:
        generic_store(frame, owner, name, value)


def generic_store(frame: Frame, owner: Variable, name: str, value: Variable) -> None:
    """`object.__setattr__(owner, name, value)`."""
    from plait_bytecode_tracer.making.building import set_class_attribute

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
            _call_real(frame, static.fset, [owner, value])
            return
        setter = static_attribute(type(static), "__set__")
        if is_python(setter):
            _call_real(frame, setter, [frame.state.made.given(static), owner, value])
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


def fails_to_set(kind: str, name: str) -> NoReturn:
    """Raise what setting or deleting an attribute of an object without a dict raises."""
    text = f"{kind!r} object has no attribute {name!r}"
    if sys.version_info >= (3, 13):
        text += " and no __dict__ for setting new attributes"
    fails(AttributeError, text)


def write_attribute(frame: Frame, owner: Variable, name: str, value: Variable) -> None:
    """Set what an object itself holds under a name."""
    cls = class_of(owner)
    if not cls.__dictoffset__:
        static = static_attribute(cls, name)
        if static is MISSING:
            fails_to_set(cls.__name__, name)
        if not _is_data_descriptor(static):
            text = f"{cls.__name__!r} object attribute {name!r} is read-only"
            fails(AttributeError, text)
    if isinstance(owner, ObjectVariable):
        owner.attributes[name] = value
        return
    if not isinstance(owner, Known) or owner.source is None:
        raise TraceBreakError("GB0007", f"a write to the attribute {name!r} of {describe(owner)}")
    state = frame.state
    if is_a(owner.value, types.ModuleType):
        write_global(frame, own_table(owner.value), name, value)
        return
    table = None
    if not _is_slot(cls, name) and cls.__dictoffset__:
        table = state.wrapped.get(id(own_table(owner.value)))
    if isinstance(table, DictVariable):
        write_entry(frame, table, name, value)
        return
    state.attributes.setdefault(id(owner.value), {})[name] = value
    state.owners[id(owner.value)] = owner


def _is_slot(cls: type, name: str) -> bool:
    """Whether instances hold an attribute outside of their `__dict__`."""
    return isinstance(static_attribute(cls, name), types.MemberDescriptorType)


def write_entry(frame: Frame, table: DictVariable, name: str, value: Variable) -> None:
    """Set or, with DELETED, delete an entry of the dict in which an object holds its attributes."""
    if value is not DELETED:
        dict_set(frame, table, name, value)
    elif name in table.items:
        dict_delete(frame, table, name)


def write_global(frame: Frame, namespace: dict[str, Any], name: str, value: Variable) -> None:
    """Set or, with DELETED, delete a variable of a module."""
    write_entry(frame, global_table(frame.state, namespace), name, value)


def delete_object_attribute(frame: Frame, owner: Variable, name: str) -> None:
    """`del owner.name` by the object's class."""
    cls = class_of(owner)
    remover = static_attribute(cls, "__delattr__")
    guard_class(frame, cls, "__delattr__")
    if frame.state.made.is_made(plain_class(owner)) and not is_python(remover):
        delete_attribute(frame, owner, name)
        return
    if isinstance(owner, Known) and owner.source is None:
        raise TraceBreakError("GB0007", f"deleting {name!r} of a {cls.__name__}")
    if is_python(remover):
        _call_real(frame, remover, [owner, constant(name)])
    else:
        delete_attribute(frame, owner, name)


def delete_attribute(frame: Frame, owner: Variable, name: str) -> None:
    """`object.__delattr__(owner, name)`."""
    from plait_bytecode_tracer.making.building import delete_class_attribute

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
        _call_real(frame, static.fdel, [owner])
        return
    remover = static_attribute(type(static), "__delete__")
    if is_python(remover):
        _call_real(frame, remover, [frame.state.made.given(static), owner])
        return
    is_slot = isinstance(static, types.MemberDescriptorType) and isinstance(owner, ObjectVariable)
    if static is not MISSING and remover is not MISSING and not is_slot:
        raise TraceBreakError("GB0007", f"deleting {name!r}, which {cls.__name__} intercepts")
    if instance_attribute(frame, owner, name) is None:
        if not cls.__dictoffset__ and static is MISSING:
            fails_to_set(cls.__name__, name)
        if not cls.__dictoffset__ and not _is_data_descriptor(static):
            fails(AttributeError, f"{cls.__name__!r} object attribute {name!r} is read-only")
        fails_attribute(f"{cls.__name__!r} object has no attribute {name!r}", owner, name)
    if isinstance(owner, ObjectVariable):
        del owner.attributes[name]
    else:
        write_attribute(frame, owner, name, DELETED)


# Storage that instances inherit from builtin classes.


def builtin_base(cls: type) -> type | None:
    """The builtin container or exception class that instances store as, if any."""
    for base in cls.__mro__:
        if base in BUILTIN_BASES:
            return base
    return None


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
