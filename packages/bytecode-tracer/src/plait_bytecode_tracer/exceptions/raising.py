"""Python exceptions of the traced program, as values of the trace."""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    ExceptionStorage,
    Known,
    ObjectVariable,
    SequenceVariable,
    Variable,
    key_variable,
)

_HEAP = 1 << 9
"""The flag of types that Python code made."""
_FIELDS = types.MemberDescriptorType | types.GetSetDescriptorType


class _Raised(threading.local):
    """The errors that a thread's trace has raised; None outside of traces."""

    errors: list[weakref.ref[PythonError]] | None = None


_RAISED = _Raised()


@contextlib.contextmanager
def errors_let_go() -> Iterator[None]:
    """Have errors of a trace hold no frames when it has ended.

    A frame that raises an error which one of its variables names lives, with all below it, until
    cycles are collected, and with it what the call was given: generators would be closed late.
    """
    raised: list[weakref.ref[PythonError]] = []
    outer, _RAISED.errors = _RAISED.errors, raised
    try:
        yield
    finally:
        for error in filter(None, (each() for each in raised)):
            error.__traceback__ = None
        _RAISED.errors = outer


class PythonError(Exception):
    """The traced program raises an exception here; `value` is that exception.

    The frames of the trace unwind to the handler that the program has for it. Where there
    is none, the trace breaks before the statement, and Python raises it.
    """

    def __init__(self, value: Variable, *, is_new: bool = True) -> None:
        super().__init__()
        if _RAISED.errors is not None:
            _RAISED.errors.append(weakref.ref(self))
        self.value = value
        self.is_new = is_new
        """Whether it is raised here: what is being handled becomes its context."""
        self.is_reraised = not is_new
        """Whether the instruction that raises it adds nothing to its traceback."""
        self.frame: Any = None
        """The innermost frame that was being traced."""
        self.last: int | None = None
        """The instruction that a frame is said to have run last, where it raises again."""

    def __str__(self) -> str:
        return describe_exception(self.value)


def native_class(cls: type) -> Any:
    """The nearest class that C defines in an exception's order of bases."""
    return next(b for b in cls.__mro__ if not b.__flags__ & _HEAP or b is ExceptionGroup)


@functools.cache
def native_fields(cls: type) -> tuple[str, ...]:
    """The names under which a C class of exceptions keeps what it was made with."""
    found: list[str] = []
    for base in cls.__mro__:
        if base is BaseException or base is object:
            break
        found += [n for n, v in vars(base).items() if isinstance(v, _FIELDS) and n[0] != "_"]
    return tuple(found)


def storage_of_real(error: BaseException, back: Callable[[Any], Variable]) -> ExceptionStorage:
    """What a real exception keeps; `back` gives the variable of each value."""
    storage = ExceptionStorage([back(item) for item in error.args])
    for name in native_fields(native_class(type(error))):
        value = getattr(error, name, None)
        if value is not None:
            storage.fields[name] = back(value)
    return storage


def _variable(value: Any) -> Variable:
    return value if isinstance(value, Variable) else key_variable(value)


def python_error(error: BaseException) -> PythonError:
    """A real exception, as the traced program sees it. Raises what is none of the program's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TraceBreakError):
            raise cause
        cause = cause.__cause__
    return PythonError(ObjectVariable(type(error), {}, storage_of_real(error, _variable)))


def fails(kind: type[BaseException], *args: Any, **fields: Any) -> NoReturn:
    """Raise an exception in the traced program."""
    raise python_error(kind(*args, **fields))


def fails_attribute(text: str, owner: Variable, name: str) -> NoReturn:
    """Raise AttributeError in the traced program, which says of what and which attribute."""
    error = python_error(AttributeError(text))
    complete_attribute_error(error, owner, name)
    raise error


def complete_attribute_error(error: PythonError, owner: Variable, name: str) -> None:
    """Let an AttributeError that does not say so yet say which attribute of what is missing."""
    made = error.value
    if not (isinstance(made, ObjectVariable) and isinstance(made.base, ExceptionStorage)):
        return
    fields = made.base.fields
    if issubclass(made.cls, AttributeError) and "name" not in fields and "obj" not in fields:
        fields.update(name=Known(name), obj=owner)


def exception_class(value: Variable) -> type[BaseException]:
    """The class of an exception of the traced program. Raises TraceBreakError for others."""
    cls = type(value.value) if isinstance(value, Known) else getattr(value, "cls", None)
    if isinstance(cls, type) and issubclass(cls, BaseException):
        return cls
    raise TraceBreakError("GB0006", "what is raised is not an exception")


def is_exception(value: Variable) -> bool:
    """Whether a value is an instance of an exception class."""
    cls = type(value.value) if isinstance(value, Known) else getattr(value, "cls", object)
    return issubclass(cls, BaseException)


def describe_exception(value: Variable) -> str:
    """An exception for people, as far as its arguments are known."""
    name = exception_class(value).__name__
    base = getattr(value, "base", None)
    items = base.items if isinstance(base, SequenceVariable) else []
    shown = [repr(i.value) for i in items if isinstance(i, Known) and is_constant(i.value)]
    return f"{name}({', '.join(shown)})"
