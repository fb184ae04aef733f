"""Exceptions that the trace makes: their fields, as `Objects/exceptions.c` keeps them.

What a class of exceptions that C defines does with its arguments is found by making one for
real, with stand-ins for values that only the graph's run gives.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import (
    exception_class,
    fails,
    is_exception,
    native_class,
    python_error,
    storage_of_real,
)
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    ExceptionStorage,
    Known,
    ObjectVariable,
    SequenceVariable,
    TracebackVariable,
    Variable,
)
from plait_utils import dataclass


class _StandIn(Exception):
    """Stands for an exception of the trace."""


class _BaseStandIn(BaseException):
    """Stands for an exception of the trace that is no `Exception`."""


@dataclass(slots=True)
class _StandIns:
    """Real values for variables, and the way back."""

    variables: dict[int, Variable] = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)
    are_opaque: bool = False
    """Whether there is one whose type a constructor would see to be another."""

    def real(self, variable: Variable) -> Any:
        """A real value for a variable."""
        if isinstance(variable, Known) and is_constant(variable.value):
            return variable.value
        made: Any
        if isinstance(variable, SequenceVariable) and variable.kind in (list, tuple):
            made = variable.kind([self.real(item) for item in variable.items])
        elif is_exception(variable):
            made = (
                _StandIn() if issubclass(exception_class(variable), Exception) else _BaseStandIn()
            )
        else:
            made = object()
            self.are_opaque = True
        self.variables[id(made)] = variable
        self.kept.append(made)
        return made

    def back(self, value: Any) -> Variable:
        """The variable of a value that a real exception keeps."""
        known = self.variables.get(id(value))
        if known is not None:
            return known
        if type(value) is tuple and not is_constant(value):
            return SequenceVariable([self.back(item) for item in value], tuple)
        return constant(value)


def _twin_class(cls: type) -> Any:
    """A class that does with its arguments what the C class below a class does."""
    native = native_class(cls)
    if cls is native:
        return cls
    bases: tuple[type, ...] = (native,)
    if issubclass(cls, Exception) and not issubclass(native, Exception):
        bases = (native, Exception)
    body: dict[str, Any] = {"__module__": cls.__module__}
    starts = (base.__dict__["__init__"] for base in cls.__mro__ if "__init__" in base.__dict__)
    if isinstance(next(starts), types.FunctionType):  # OSError asks
        body["__init__"] = lambda self, *args, **kwargs: None
    return type(cls.__name__, bases, body)


def new_exception(
    cls: type, args: Sequence[Variable], kwargs: Mapping[str, Variable]
) -> ObjectVariable:
    """What the `__new__` of an exception class gives."""
    stand = _StandIns()
    real = [stand.real(arg) for arg in args]
    named = {name: stand.real(value) for name, value in kwargs.items()}
    try:
        made = native_class(cls).__new__(_twin_class(cls), *real, **named)
    except Exception as error:
        raise _constructor_error(cls, stand, error) from error
    found = type(made) if cls is native_class(cls) else cls  # such as FileNotFoundError
    return ObjectVariable(found, {}, storage_of_real(made, stand.back))


def initialize_exception(
    made: ObjectVariable, args: Sequence[Variable], kwargs: Mapping[str, Variable]
) -> None:
    """The `__init__` that an exception inherits from C."""
    storage = made.base
    if not isinstance(storage, ExceptionStorage):
        raise TraceBreakError("GB0009", "an exception without arguments")
    native = native_class(made.cls)
    stand = _StandIns()
    real = [stand.real(arg) for arg in args]
    named = {name: stand.real(value) for name, value in kwargs.items()}
    cls = _twin_class(made.cls)
    try:
        if issubclass(native, BaseExceptionGroup):
            if kwargs:
                fails(TypeError, f"{made.cls.__name__}() takes no keyword arguments")
            storage.items[:] = args
            return
        if issubclass(native, OSError):
            twin = native.__new__(cls, *real, **named)
        else:
            twin = native.__new__(cls)
        native.__init__(twin, *real, **named)
    except Exception as error:
        raise _constructor_error(made.cls, stand, error) from error
    found = storage_of_real(twin, stand.back)
    kept = {name: value for name, value in storage.fields.items() if name.startswith("__")}
    storage.items[:] = found.items
    storage.fields.clear()
    storage.fields.update({**found.fields, **kept})


def _constructor_error(cls: type, stand: _StandIns, error: Exception) -> Exception:
    if isinstance(error, TypeError | ValueError) and not stand.are_opaque:
        return python_error(error)
    if not isinstance(error, TypeError | ValueError):
        return error
    return TraceBreakError("GB0009", f"a new {cls.__name__}: {error}")


# Fields.

_DEFAULTS: dict[str, Any] = {"__suppress_context__": False}


def keeps_field(owner: Variable, static: object) -> bool:
    """Whether an attribute of an exception's class is a field that C keeps in the exception."""
    return (
        isinstance(owner, ObjectVariable)
        and isinstance(owner.base, ExceptionStorage)
        and isinstance(static, types.MemberDescriptorType | types.GetSetDescriptorType)
        and issubclass(static.__objclass__, BaseException)
        and native_class(static.__objclass__) is static.__objclass__
    )


def exception_field(owner: ObjectVariable, name: str) -> Variable:
    """A field of an exception of the trace."""
    storage = owner.base
    assert isinstance(storage, ExceptionStorage)
    found = storage.fields.get(name)
    if name == "args":
        if found is None:
            found = storage.fields["args"] = SequenceVariable(list(storage.items), tuple)
        return found
    if name == "characters_written" and found is None:
        fails(AttributeError, name)
    return constant(_DEFAULTS.get(name)) if found is None else found


def set_exception_field(frame: Frame, owner: ObjectVariable, name: str, value: Variable) -> None:
    """Assign to a field of an exception of the trace, with the checks of its setter."""
    storage = owner.base
    assert isinstance(storage, ExceptionStorage)
    is_none = isinstance(value, Known) and value.value is None
    match name:
        case "args":
            storage.items[:] = list(elements(frame, value))
            storage.fields.pop("args", None)
            return
        case "message" | "exceptions" if issubclass(owner.cls, BaseExceptionGroup):
            fails(AttributeError, "readonly attribute")
        case "__traceback__":
            real = isinstance(value, Known) and isinstance(value.value, types.TracebackType)
            if not (is_none or real or isinstance(value, TracebackVariable)):
                fails(TypeError, "__traceback__ must be a traceback or None")
        case "__cause__" | "__context__":
            if not (is_none or is_exception(value)):
                word = name.strip("_")
                fails(TypeError, f"exception {word} must be None or derive from BaseException")
            if name == "__cause__":
                storage.fields["__suppress_context__"] = constant(True)
        case "__suppress_context__":
            if not (isinstance(value, Known) and isinstance(value.value, bool)):
                fails(TypeError, "attribute value type must be bool")
        case "start" | "end" if issubclass(owner.cls, UnicodeError):
            if not (isinstance(value, Known) and isinstance(value.value, int)):
                raise TraceBreakError("GB0007", f"{name} of a UnicodeError set to no int")
    storage.fields[name] = value
