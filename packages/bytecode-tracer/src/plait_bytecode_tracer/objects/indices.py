"""Objects as integers: `__index__` of the traced program's own objects."""

from __future__ import annotations

import operator
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.objects import special_method, storage_of
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.constants import is_fixed
from plait_bytecode_tracer.values.variables import (
    Known,
    ObjectVariable,
    SliceVariable,
    Variable,
)


def with_index(frame: Frame, value: Variable) -> Variable:
    """An index or slice in which the program's objects are the integers that they stand for."""
    if isinstance(value, SliceVariable):
        start, stop, step = value.parts
        asked = [with_index(frame, part) for part in (step, start, stop)]  # as C asks them
        return SliceVariable([*asked[1:], asked[0]])
    is_object = isinstance(value, ObjectVariable) or (
        isinstance(value, Known) and not is_fixed(value.value)
    )
    if not is_object:
        return value
    inner = storage_of(frame, value)
    if isinstance(inner, Known) and isinstance(inner.value, int):  # an int is asked for nothing
        return inner
    method = special_method(frame, value, "__index__")
    if method is None:
        return value
    found = frame.call(method, [], {})
    if not isinstance(found, Known) or not isinstance(found.value, int):
        fails(TypeError, f"__index__ returned non-int (type {type_of(found).__name__})")
    return found


def plain_index(frame: Frame, value: Variable) -> Any:
    """An index or slice as Python has it; what is none as it is, for an error to say so.

    Breaks at objects of the program's own that are none, which the error would have to name.
    """
    index = with_index(frame, value)
    if isinstance(index, ObjectVariable):
        raise TraceBreakError("GB0008", f"a {index.cls.__name__} as an index")
    return plain_value(index)


def as_index(frame: Frame, value: Variable) -> int:
    """`operator.index(value)`."""
    index = with_index(frame, value)
    if isinstance(index, ObjectVariable):  # what it stores would be named, of another class
        fails(TypeError, f"'{index.cls.__name__}' object cannot be interpreted as an integer")
    found: Any = plain_value(index)
    try:
        return operator.index(found)
    except TypeError as error:
        raise python_error(error) from error
