"""Python's own errors and conversions for objects of the trace, by real objects like them.

What an operator or builtin function says of operands that it cannot take depends on their
classes alone. So it is called for real on values of the same classes: empty containers, and
for classes of the user's, instances of a class of the same name that defines nothing, or just
the special method that the trace has called, with the result that it gave.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NoReturn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import python_error
from plait_bytecode_tracer.objects.statics import builtin_base
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    DictVariable,
    FunctionVariable,
    GeneratorVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    Variable,
)

HEAP_TYPE = 1 << 9
"""The flag of a class that is written in Python."""
_PLAIN = (list, tuple, dict, set, frozenset)
_VALUES = (int, float, complex, str, bytes)
_METHODS: dict[type, Any] = {
    types.BuiltinMethodType: [].append,
    types.MethodWrapperType: [].__len__,
    types.MethodType: types.MethodType(len, []),
}
"""A bound method of each class."""


def stand_in(cls: type, methods: dict[str, Any]) -> Any:
    """An instance of a class of the same name that defines just these methods."""
    return type(cls.__name__, (), methods)()


def is_plain_class(cls: type) -> bool:
    """Whether a class and its bases are written in Python, and store nothing but attributes."""
    return all(base.__flags__ & HEAP_TYPE for base in cls.__mro__[:-1])


def _sample(value: Variable, made: dict[type, Any]) -> Any:
    """A real value of the class of a tracked one."""
    match value:
        case Known() if is_constant(value.value):
            return value.value
        case Known() if isinstance(value.value, type) and type(value.value) is type:
            return value.value
        case SequenceVariable() | DictVariable() | SetVariable() if value.kind in _PLAIN:
            return value.kind()
        case SequenceVariable() | DictVariable() | SetVariable():
            pass
        case FunctionVariable():
            return lambda: None
        case BoundVariable() | MethodVariable() if type_of(value) in _METHODS:
            return _METHODS[type_of(value)]
        case GeneratorVariable():
            return (None for _ in range(0))
        case SliceVariable():
            return slice(None)
        case Known() | ObjectVariable():
            cls = type_of(value)
            base = builtin_base(cls)
            if base in (*_PLAIN, *_VALUES) or (base is None and is_plain_class(cls)):
                if cls not in made:
                    made[cls] = type(cls.__name__, () if base is None else (base,), {})()
                return made[cls]
    raise TraceBreakError("GB0008", "an operation on operands that it may not take")


def fails_for_real(function: Callable[..., Any], args: list[Variable]) -> NoReturn:
    """Raise in the traced program what a function says of operands that define nothing for it."""
    made: dict[type, Any] = {}
    samples = [_sample(arg, made) for arg in args]
    name = getattr(function, "__name__", str(function))
    try:
        function(*samples)
    except TypeError as error:
        raise python_error(error) from error
    except Exception as error:
        raise TraceBreakError("GB0008", f"{name} of these operands") from error
    raise TraceBreakError("GB0008", f"{name} of these operands")
