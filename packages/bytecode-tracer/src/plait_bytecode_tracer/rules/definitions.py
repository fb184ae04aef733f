"""What is known of functions and classes, and functions made of functions."""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.frames.inlining import inline
from plait_bytecode_tracer.objects.containers import describe, plain_value
from plait_bytecode_tracer.objects.statics import guard_class, static_attribute
from plait_bytecode_tracer.outside.assumptions import guard_function
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    Variable,
)


@builtin(inspect.signature)
def signature(frame: Frame, function: Variable, **options: Variable) -> Variable:
    if isinstance(function, ObjectVariable):
        function = _caller_of(frame, function)
    return _of_definition(frame, inspect.signature, function, options)


def _caller_of(frame: Frame, owner: ObjectVariable) -> Known:
    """The method that a call of an object calls."""
    method = static_attribute(owner.cls, "__call__")
    guard_class(frame, owner.cls, "__call__")
    own = ("__signature__", "__wrapped__")
    described = any(name in owner.attributes or hasattr(owner.cls, name) for name in own)
    if described or not isinstance(method, types.FunctionType):
        raise TraceBreakError("GB0009", f"the signature of a {owner.cls.__name__}")
    return constant(types.MethodType(method, owner))


@builtin(dataclasses.fields)
def fields(frame: Frame, owner: Variable) -> Variable:
    cls = owner.cls if isinstance(owner, ObjectVariable) else getattr(owner, "value", None)
    if frame.state.made.is_made(cls):
        function: Any = dataclasses.fields
        return inline(frame, function, [owner], {})
    return _of_definition(frame, dataclasses.fields, owner, {})


@builtin(dataclasses.is_dataclass)
def is_dataclass(frame: Frame, owner: Variable) -> Variable:
    if isinstance(owner, Known):
        return constant(dataclasses.is_dataclass(owner.value))
    return constant(dataclasses.is_dataclass(type_of(owner)))


def _of_definition(
    frame: Frame, function: Any, owner: Variable, options: dict[str, Variable]
) -> Variable:
    """What a function tells of a definition."""
    if isinstance(owner, ObjectVariable):
        owner = constant(owner.cls)
    if isinstance(owner, BoundVariable) and isinstance(owner.function, Known):
        owner = constant(types.MethodType(owner.function.value, owner))
    if not isinstance(owner, Known):
        raise TraceBreakError("GB0009", f"{function.__name__} of a {describe(owner)}")
    _guard_definition(frame, owner.value)
    try:
        found = function(owner.value, **{n: plain_value(v) for n, v in options.items()})
    except (TypeError, ValueError) as error:
        raise python_error(error) from error
    if isinstance(found, tuple):
        return SequenceVariable([constant(item) for item in found], tuple)
    return constant(found)


def _guard_definition(frame: Frame, real: Any) -> None:
    """What decides a signature, or the fields of a class, stays as it is."""
    real = getattr(real, "__func__", real) if isinstance(real, types.MethodType) else real
    if isinstance(real, types.FunctionType) and not frame.state.made.depends(real):
        guard_function(frame.state, real)
    elif isinstance(real, type):
        for name in ("__init__", "__new__", "__signature__", "__dataclass_fields__"):
            guard_class(frame, real, name)
