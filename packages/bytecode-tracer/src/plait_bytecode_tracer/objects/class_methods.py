"""What a `classmethod` gives, and the `__get__` of the descriptors that C defines."""

from __future__ import annotations

import sys
import types
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.statics import is_python, static_attribute
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.variables import BoundVariable, Known, Variable

_PLAIN = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
DESCRIPTORS = (classmethod, staticmethod, property)


def bind_to_class(frame: Frame, static: classmethod[Any, Any, Any], cls: Known) -> Variable:
    """What a classmethod gives for a class: to 3.12 what it holds may itself be a descriptor."""
    function: Any = static.__func__
    given = frame.state.made.given
    if sys.version_info >= (3, 13) or isinstance(function, _PLAIN):
        return BoundVariable(given(function), cls)
    if isinstance(function, DESCRIPTORS):
        return get_descriptor(frame, function, cls, cls)
    getter = static_attribute(type(function), "__get__")
    if is_python(getter):
        return frame.call(given(getter), [given(function), cls, cls], {})
    if hasattr(type(function), "__get__"):
        raise TraceBreakError("GB0007", f"a classmethod of a {type(function).__name__}")
    return BoundVariable(given(function), cls)


def get_descriptor(
    frame: Frame, static: Any, instance: Variable, owner: Variable | None = None
) -> Variable:
    """`static.__get__(instance, owner)` of a classmethod, staticmethod or property."""
    is_none = isinstance(instance, Known) and instance.value is None
    no_owner = owner is None or (isinstance(owner, Known) and owner.value is None)
    if is_none and no_owner:
        fails(TypeError, "__get__(None, None) is invalid")
    if isinstance(static, staticmethod):
        return frame.state.made.given(static.__func__)
    if isinstance(static, classmethod):
        cls = constant(type_of(instance)) if owner is None or no_owner else owner
        if not isinstance(cls, Known):
            raise TraceBreakError("GB0007", "a classmethod bound to an object")
        return bind_to_class(frame, static, cls)
    if is_none:
        return frame.state.made.given(static)
    if static.fget is None:
        raise TraceBreakError("GB0007", "a property without a getter")
    return frame.call(frame.state.made.given(static.fget), [instance], {})
