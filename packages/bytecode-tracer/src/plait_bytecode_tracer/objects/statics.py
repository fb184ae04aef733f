"""What classes define, past what their own code would answer."""

from __future__ import annotations

import collections
import types
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.objects.containers import describe
from plait_bytecode_tracer.outside.assumptions import guard_class_attribute
from plait_bytecode_tracer.values.plain import VALUE_BASES
from plait_bytecode_tracer.values.variables import Known, ObjectVariable, Variable

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


def call_real(frame: Frame, function: Any, args: list[Variable]) -> Variable:
    return frame.call(frame.state.made.given(function), args, {})


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


def is_data_descriptor(static: Any) -> bool:
    return hasattr(type(static), "__set__") or hasattr(type(static), "__delete__")


def is_slot(cls: type, name: str) -> bool:
    """Whether instances hold an attribute outside of their `__dict__`."""
    return isinstance(static_attribute(cls, name), types.MemberDescriptorType)


def builtin_base(cls: type) -> type | None:
    """The builtin container or exception class that instances store as, if any."""
    for base in cls.__mro__:
        if base in BUILTIN_BASES:
            return base
    return None
