"""Python exceptions of the traced program, as values of the trace."""

from __future__ import annotations

from typing import Any, NoReturn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.variables import (
    Known,
    ObjectVariable,
    SequenceVariable,
    Variable,
    is_constant,
)


class PythonError(Exception):
    """The traced program raises an exception here; `value` is that exception.

    The frames of the trace unwind to the handler that the program has for it. Where there
    is none, the trace breaks before the statement, and Python raises it.
    """

    def __init__(self, value: Variable) -> None:
        super().__init__()
        self.value = value

    def __str__(self) -> str:
        return describe_exception(self.value)


def python_error(error: BaseException) -> PythonError:
    """A real exception, as the traced program sees it. Raises what is none of the program's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TraceBreakError):
            raise cause
        cause = cause.__cause__
    items = [item if isinstance(item, Variable) else Known(item) for item in error.args]
    return PythonError(ObjectVariable(type(error), {}, SequenceVariable(items, tuple)))


def fails(kind: type[BaseException], *args: Any) -> NoReturn:
    """Raise an exception in the traced program."""
    raise python_error(kind(*args))


def exception_class(value: Variable) -> type[BaseException]:
    """The class of an exception of the traced program. Raises TraceBreakError for others."""
    cls = type(value.value) if isinstance(value, Known) else getattr(value, "cls", None)
    if isinstance(cls, type) and issubclass(cls, BaseException):
        return cls
    raise TraceBreakError("GB0006", "what is raised is not an exception")


def describe_exception(value: Variable) -> str:
    """An exception for people, as far as its arguments are known."""
    name = exception_class(value).__name__
    base = getattr(value, "base", None)
    items = base.items if isinstance(base, SequenceVariable) else []
    shown = [repr(i.value) for i in items if isinstance(i, Known) and is_constant(i.value)]
    return f"{name}({', '.join(shown)})"
