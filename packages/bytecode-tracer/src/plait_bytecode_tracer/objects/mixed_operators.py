"""Operators of a tensor and an object of the program: its class is asked, as Python does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.comparison import is_implemented
from plait_bytecode_tracer.objects.objects import special_method
from plait_bytecode_tracer.objects.statics import class_of, is_python, static_attribute
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    Known,
    ObjectVariable,
    TensorVariable,
    Variable,
)

_REFLECTED = {
    "lt": "gt",
    "gt": "lt",
    "le": "ge",
    "ge": "le",
    "eq": "eq",
    "ne": "ne",
    **{
        name: f"r{name}"
        for name in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or"),
            *("xor", "lshift", "rshift"),
        )
    },
}
"""The method that the right operand is asked for."""
_TAKEN = ("__torch_function__", "__index__", "__float__", "__complex__", "__array__", "__int__")
"""What lets a tensor's own operator take an object."""
_NUMBERS = (int, float, complex, str, torch.Tensor, torch.nn.Module)


def by_object(frame: Frame, function: Callable[..., Any], args: list[Variable]) -> Variable | None:
    """What the class of the object says; None where torch is to say it."""
    if len(args) != 2 or sum(isinstance(arg, TensorVariable) for arg in args) != 1:
        return None
    name = function.__name__.strip("_")
    plain = name if name in _REFLECTED else name.removeprefix("i")
    if plain not in _REFLECTED:
        return None
    left, right = args
    owner, other = (right, left) if isinstance(left, TensorVariable) else (left, right)
    if not _is_refused(owner):
        return None
    forward = owner is left
    asked = [f"__{plain}__" if forward else f"__{_REFLECTED[plain]}__"]
    if forward and name != plain:
        asked.insert(0, f"__{name}__")
    for each in asked:
        if not is_python(static_attribute(class_of(owner), each)):
            continue
        method = special_method(frame, owner, each)
        found = None if method is None else frame.call(method, [other], {})
        if found is not None and is_implemented(found):
            return found
    return None


def _is_refused(value: Variable) -> bool:
    """Whether operators of tensors know nothing to do with a value."""
    is_object = isinstance(value, ObjectVariable)
    if not is_object and not (isinstance(value, Known) and not is_constant(value.value)):
        return False
    cls = class_of(value)
    if issubclass(cls, _NUMBERS) or cls.__module__.partition(".")[0] in ("numpy", "torch"):
        return False
    return not any(hasattr(cls, name) for name in _TAKEN)
