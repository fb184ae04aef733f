"""`isinstance` and `issubclass`, with the hooks of metaclasses and of `__class__`."""

from __future__ import annotations

import abc
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, exception_class, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.objects.attributes import load_attribute
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.objects import (
    instance_attribute,
    object_attribute,
    special_method,
)
from plait_bytecode_tracer.objects.operations import truth
from plait_bytecode_tracer.objects.statics import (
    IMMUTABLE,
    MISSING,
    guard_class,
    guard_order,
    is_python,
    static_attribute,
)
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.twins.registry import TWINS
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.constants import is_fixed
from plait_bytecode_tracer.values.variables import (
    Known,
    ObjectVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)
from plait_utils.wrappings import is_wrapper

_PLAIN = frozenset({"abc", "typing", "enum", "torch", "builtins", "typing_extensions"})
"""Top modules whose checks are called as they are."""


@builtin(isinstance)
def isinstance_(frame: Frame, value: Variable, classes: Variable, /) -> Variable:
    wanted = plain_value(classes)
    for cls in _each(wanted):
        if isinstance(value, Known) and type(value.value) is cls:
            return constant(True)
        _guard_kinship(frame, type_of(value), cls)
        hook = _own_check(frame, cls, "__instancecheck__")
        if hook is None and _is_hooked(frame, cls):
            if _by_subclass_hook(frame, cls, type_of(value)):
                return constant(True)
            continue
        if truth(frame, _call(frame, hook, value)) if hook else _is_instance(frame, value, cls):
            return constant(True)
    return constant(False)


@builtin(issubclass)
def issubclass_(frame: Frame, value: Variable, classes: Variable, /) -> Variable:
    wanted = plain_value(classes)
    for cls in _each(wanted):
        hook = _own_check(frame, cls, "__subclasscheck__")
        if hook is None and _is_hooked(frame, cls) and isinstance(value, Known):
            if _by_subclass_hook(frame, cls, value.value):
                return constant(True)
            continue
        if hook is not None:
            if truth(frame, _call(frame, hook, value)):
                return constant(True)
            continue
        if not isinstance(value, Known):
            raise TraceBreakError("GB0009", "issubclass of a value of the trace")
        _guard_kinship(frame, value.value, cls)
        try:
            if issubclass(value.value, cls):
                return constant(True)
        except TypeError as error:
            raise python_error(error) from error
    return constant(False)


def _each(wanted: Any) -> Iterator[Any]:
    """The classes of a tuple of classes, tuples and unions."""
    parts: Any = wanted if type(wanted) is tuple else ()
    if type(wanted) is types.UnionType:
        parts = wanted.__args__
    is_union = type(wanted) is types.UnionType and all(isinstance(p, type) for p in parts)
    if type(wanted) is tuple or is_union:
        for part in parts:
            yield from _each(part)
    elif _stands_for_class(wanted):
        raise TraceBreakError("GB0009", "an object that stands for a class")
    else:
        yield wanted


def _stands_for_class(wanted: Any) -> bool:
    """Whether something that is no class tells its bases as one does."""
    if isinstance(wanted, type) or type(wanted).__module__ in ("typing", "types"):
        return False
    return static_attribute(type(wanted), "__instancecheck__") is MISSING


def _guard_kinship(frame: Frame, kind: Any, cls: Any) -> None:
    """A class from outside is a subclass of another, or not, as long as this holds."""
    if not isinstance(kind, type) or kind.__flags__ & IMMUTABLE:
        return
    guard_order(frame, kind)
    is_made = frame.state.made.is_made
    known, key = frame.state.class_guards, (id(kind), f"is of {id(cls)}")
    if type(cls) is abc.ABCMeta and not is_made(cls) and not is_made(kind) and key not in known:
        known.add(key)  # other classes may be registered
        ask = functools.partial(issubclass, kind, cls)
        text = f"issubclass({kind.__qualname__}, {cls.__qualname__}) is {ask()}"
        frame.state.require(None, Kind.MODE, Mode(ask, ask()), text)


def _own_check(frame: Frame, cls: Any, name: str) -> Variable | None:
    """The check that the class's metaclass defines in Python, if it is the user's."""
    function = static_attribute(type(cls), name)
    if type(cls).__module__.split(".")[0] not in _PLAIN:
        guard_class(frame, type(cls), name)
    if not is_python(function) or function.__module__.split(".")[0] in _PLAIN:
        return None
    return special_method(frame, constant(cls), name)


def _is_hooked(frame: Frame, cls: Any) -> bool:
    """Whether an abstract class of the trace has a `__subclasshook__`."""
    if type(cls) is not abc.ABCMeta or not frame.state.made.is_made(cls):
        return False
    hook = static_attribute(cls, "__subclasshook__")
    function = getattr(hook, "__func__", None)
    return is_python(function) and function.__module__.split(".")[0] not in _PLAIN


def _by_subclass_hook(frame: Frame, cls: Any, kind: type) -> bool:
    """What `__subclasshook__` says, or else the bases of the class."""
    hook = load_attribute(frame, constant(cls), "__subclasshook__")
    found = _call(frame, hook, constant(kind))
    if not (isinstance(found, Known) and found.value is NotImplemented):
        return truth(frame, found)
    if cls in kind.__mro__:
        return True
    raise TraceBreakError("GB0009", "an abstract class that may have registered others")


def _call(frame: Frame, function: Variable, value: Variable) -> Variable:
    return frame.call(function, [value], {})


_abc_parts: Any = vars(abc)["_get_dump"]
"""What an abstract class keeps in C: first, which classes were registered with it."""


def _by_protocol(frame: Frame, value: ObjectVariable | Known, cls: Any) -> bool:
    """Whether an object has what a protocol asks for, on its class or itself."""
    kind = type_of(value)
    registered = [reference() for reference in _abc_parts(cls)[0]]
    if cls in kind.__mro__ or any(other in kind.__mro__ for other in registered):
        return True
    if not cls._is_runtime_protocol:
        raise TraceBreakError("GB0006", "a protocol that instances are not asked for")
    names = cls.__protocol_attrs__
    data = getattr(cls, "__non_callable_proto_members__", names)
    if is_python(static_attribute(kind, "__getattribute__")):
        raise TraceBreakError("GB0009", "a protocol asked of an object with attributes of its own")
    for name in names:
        held = instance_attribute(frame, value, name)
        static = static_attribute(kind, name)
        guard_class(frame, kind, name)
        is_none = static is None if held is None else isinstance(held, Known) and held.value is None
        if (held is None and static is MISSING) or (is_none and name not in data):
            return False
    return True


def _is_protocol(cls: Any) -> bool:
    """Whether a class is a protocol with members that are looked for on instances, too."""
    return bool(getattr(cls, "_is_protocol", False)) and type(cls).__name__ == "_ProtocolMeta"


def _is_instance(frame: Frame, value: Variable, cls: Any) -> bool:
    is_object = isinstance(value, ObjectVariable) or (
        isinstance(value, Known) and value.source is not None and not is_fixed(value.value)
    )
    if is_object and isinstance(cls, type) and _is_protocol(cls):
        if isinstance(value, ObjectVariable | Known) and hasattr(cls, "__protocol_attrs__"):
            return _by_protocol(frame, value, cls)
        raise TraceBreakError("GB0009", "a protocol asked of an object")
    try:
        if isinstance(value, TensorVariable) and is_wrapper(value.fake):
            return isinstance(value.fake, cls)
        if isinstance(value, TensorVariable):
            sample = torch.empty(0, dtype=value.fake.dtype)
            if value.cls is torch.nn.Parameter:
                sample = torch.nn.Parameter(sample, requires_grad=False)
            return isinstance(sample, cls)
        if isinstance(value, SymbolVariable) and not _asks_types(cls):
            value = constant(plain_value(value))
        if isinstance(cls, type) and cls in TWINS:  # a twin asks
            return isinstance(value, ObjectVariable) and issubclass(value.cls, cls)
        if isinstance(value, Known) and not _hides_class(type(value.value)):
            return isinstance(value.value, cls)
        kind = type_of(value)
        if issubclass(kind, cls):
            return True
        return _hides_class(kind) and issubclass(_shown_class(frame, value), cls)
    except TypeError as error:
        if not isinstance(cls, type | types.UnionType):
            try:
                isinstance(None, cls)
            except TypeError as own:
                raise python_error(own) from own
        raise python_error(error) from error


def _asks_types(cls: Any) -> bool:
    """Whether only the type of an object decides whether it is an instance."""
    asking = type(cls).__module__.partition(".")[0]
    return type(cls) is type or asking in ("torch", "abc", "typing", "types")


def _hides_class(kind: type) -> bool:
    """Whether instances say by Python code what their class is."""
    if issubclass(kind, torch.nn.Module):
        return False
    static = static_attribute(kind, "__class__")
    own_way = is_python(static_attribute(kind, "__getattribute__"))
    return own_way or (static is not object.__dict__["__class__"] and kind is not type)


def _shown_class(frame: Frame, value: Variable) -> Any:
    if not isinstance(value, ObjectVariable | Known):
        return object
    try:
        found = object_attribute(frame, value, "__class__")
    except PythonError as error:
        if not issubclass(exception_class(error.value), AttributeError):
            raise
        return object
    is_class = isinstance(found, Known) and isinstance(found.value, type)
    return found.value if is_class and isinstance(found, Known) else object
