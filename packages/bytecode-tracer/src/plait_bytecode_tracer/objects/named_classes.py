"""Errors that name a builtin class where an operand is of the program's own class.

Rules hand C what an object of a class that inherits from `str` or `int` stores. Where C then
refuses it, its words name the builtin class; Python would name the program's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError
from plait_bytecode_tracer.objects.statics import builtin_base
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.variables import (
    ExceptionStorage,
    Known,
    ObjectVariable,
    Variable,
)

_WORDING = (TypeError, AttributeError)
"""The errors of C that name classes."""


def require_own_name(name: str, error: PythonError, operands: Iterable[Variable]) -> None:
    """Break where an error may name the builtin class that an operand's class inherits from.

    Args:
        name: of the function or operator that failed.
        error: what it raises.
        operands: what it was given.
    """
    made = error.value
    if not isinstance(made, ObjectVariable) or not isinstance(made.base, ExceptionStorage):
        return
    words = made.base.items[0] if made.base.items and made.cls in _WORDING else None
    if not isinstance(words, Known) or type(words.value) is not str:
        return
    for operand in operands:
        if not isinstance(operand, ObjectVariable | Known):
            continue
        cls = type_of(operand)
        base = builtin_base(cls)
        if base is not None and base is not cls and _names(words.value, base):
            raise TraceBreakError("GB0008", f"{name} of objects that inherit") from error


def _names(text: str, cls: type) -> bool:
    return re.search(rf"\b{cls.__name__}\b", text) is not None
