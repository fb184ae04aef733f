"""How many elements are expected: what lists and tuples ask before they read an iterable."""

from __future__ import annotations

import operator
import types
from collections.abc import Iterator
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, exception_class, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.iteration import elements, iterate
from plait_bytecode_tracer.objects.objects import special_method
from plait_bytecode_tracer.objects.standins import stand_in
from plait_bytecode_tracer.objects.statics import MISSING, static_attribute
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    IteratorVariable,
    Known,
    ObjectVariable,
    Variable,
)


def sized_elements(frame: Frame, values: Variable) -> Iterator[Variable]:
    """The elements of a value whose class is asked for their number first, as lists ask."""
    asks = isinstance(values, IteratorVariable) and values.asks
    if not asks and not (isinstance(values, ObjectVariable | Known) and _has_hint(values)):
        yield from elements(frame, values)
        return
    iterator = iterate(frame, values)
    hinted_length(frame, values, constant(8))
    yield from elements(frame, iterator)


_IN_C = types.WrapperDescriptorType | types.MethodDescriptorType


def _has_hint(values: ObjectVariable | Known) -> bool:
    """Whether something of the object's class tells its length that is not C alone."""
    found = [static_attribute(type_of(values), name) for name in ("__len__", "__length_hint__")]
    return any(each is not MISSING and not isinstance(each, _IN_C) for each in found)


def _hint_of_iterator(value: IteratorVariable, default: Known) -> Variable:
    if value.remaining is None:
        return default
    try:
        return constant(value.remaining())
    except PythonError as error:
        if not issubclass(exception_class(error.value), TypeError):
            raise
        return default


def hinted_length(frame: Frame, value: Variable, default: Known) -> Variable:
    """`operator.length_hint(value, default)`."""
    if isinstance(value, IteratorVariable):
        return _hint_of_iterator(value, default)
    hint: Any = NotImplemented
    try:
        if static_attribute(type_of(value), "__len__") is not MISSING:
            return frame.call(constant(len), [value], {})
        method = special_method(frame, value, "__length_hint__")
    except PythonError as error:
        if not issubclass(exception_class(error.value), TypeError):
            raise
        method = special_method(frame, value, "__length_hint__")
    if method is not None:
        try:
            found = frame.call(method, [], {})
        except PythonError as error:
            if not issubclass(exception_class(error.value), TypeError):
                raise
            return default
        if not isinstance(found, Known) or not is_constant(found.value):
            raise TraceBreakError("GB0009", "a length hint that is no constant")
        hint = found.value
    like = stand_in(type_of(value), {"__length_hint__": lambda self: hint})
    try:
        return constant(operator.length_hint(like, default.value))
    except (TypeError, ValueError) as error:
        raise python_error(error) from error
