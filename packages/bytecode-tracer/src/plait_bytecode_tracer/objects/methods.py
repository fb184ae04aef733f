"""Methods of tensors and tracked containers."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.exceptions.tracebacks import frame_method
from plait_bytecode_tracer.frames.arity import refuse_method
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.frames.generators import generator_method
from plait_bytecode_tracer.objects.container_operators import SPECIAL_METHODS
from plait_bytecode_tracer.objects.containers import hold
from plait_bytecode_tracer.objects.dict_methods import DICT_METHODS, view_method
from plait_bytecode_tracer.objects.list_methods import LIST_METHODS
from plait_bytecode_tracer.objects.set_methods import set_method
from plait_bytecode_tracer.objects.tensor_methods import tensor_method, through_mode_of_method
from plait_bytecode_tracer.outside.calendars import CLASSES, is_local, is_makers
from plait_bytecode_tracer.rules.ambient import context_method
from plait_bytecode_tracer.rules.registry import fits, takes_names
from plait_bytecode_tracer.tensors.subclasses import dispatch, holds_subclass, subclass_method
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    ContextVariable,
    CoroutineVariable,
    DictVariable,
    FrameVariable,
    FunctionVariable,
    GeneratorVariable,
    IteratorVariable,
    Known,
    MethodVariable,
    SequenceVariable,
    SetVariable,
    SubclassVariable,
    TensorVariable,
    Variable,
    ViewVariable,
)


def call_method_variable(
    frame: Frame, method: MethodVariable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """A call of a method of a tensor, container or user object's builtin base."""
    owner = method.owner
    match owner:
        case SubclassVariable():
            return subclass_method(frame, owner, method.name, args, kwargs)
        case TensorVariable() if holds_subclass([args, kwargs]):
            called: Any = getattr(torch.Tensor, method.name)
            return dispatch(frame, called, [owner, *args], kwargs)
        case TensorVariable():
            if frame.state.ambient.intercepts:
                found = through_mode_of_method(frame, owner, method.name, args, kwargs)
                if found is not None:
                    return found
            return tensor_method(frame, owner, method.name, args, kwargs)
        case ArrayVariable():
            from plait_bytecode_tracer.arrays.methods import array_method

            return array_method(frame, owner, method.name, args, kwargs)
        case SequenceVariable() | DictVariable() | SetVariable():
            return _container_method(frame, owner, method.name, args, kwargs)
        case ContextVariable():
            return context_method(frame, owner, method.name)
        case FrameVariable():
            return frame_method(frame, owner, method.name)
        case ViewVariable():
            return view_method(frame, owner, method.name, args)
        case GeneratorVariable() | CoroutineVariable():
            return generator_method(frame, owner, method.name, args)
        case IteratorVariable() if method.name == "__next__":
            found = owner.next_()
            return found if found is not None else fails(StopIteration)
        case IteratorVariable() if method.name == "__iter__":
            return owner
        case IteratorVariable() if method.name == "__copy__" and owner.copied is not None:
            return owner.copied()
        case IteratorVariable() if method.name == "__length_hint__" and owner.remaining is not None:
            return constant(owner.remaining())
        case FunctionVariable() if method.name == "__call__":
            return frame.call(owner, args, kwargs)
        case FunctionVariable():
            descriptor = constant(getattr(types.FunctionType, method.name))
            return frame.call(descriptor, [owner, *args], kwargs)
        case Known() if type(owner.value) is torch.device:
            return frame.call(constant(getattr(torch.device, method.name)), [owner, *args], kwargs)
        case Known() if is_constant(owner.value):  # such as frozenset.__contains__, bound
            return frame.call(constant(getattr(owner.value, method.name)), args, kwargs)
        case Known() if isinstance(owner.value, type):
            return frame.call(constant(getattr(owner.value, method.name)), args, kwargs)
    raise TraceBreakError("GB0002", f"the method {method.name!r}")


def _container_method(
    frame: Frame,
    owner: SequenceVariable | DictVariable | SetVariable,
    name: str,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    special = SPECIAL_METHODS.get(name)
    if special is not None:
        if kwargs or not fits(special, frame, owner, *args):
            refuse_method(owner.kind, name, args, kwargs)
        return special(frame, owner, *args)
    if isinstance(owner, SetVariable):
        if kwargs:
            refuse_method(owner.kind, name, args, kwargs)
        return set_method(frame, owner, name, args)
    table: dict[str, Callable[..., Variable]]
    table = LIST_METHODS if isinstance(owner, SequenceVariable) else DICT_METHODS
    rule = table.get(name)
    if rule is None:
        raise TraceBreakError("GB0002", f"the {owner.kind.__name__} method {name}()")
    unnamed = bool(kwargs) and not _takes_names(owner.kind, name, kwargs)
    if unnamed or not fits(rule, frame, owner, *args, **kwargs):
        refuse_method(owner.kind, name, args, kwargs)
    return rule(frame, owner, *args, **kwargs)


def _takes_names(kind: type, name: str, kwargs: dict[str, Variable]) -> bool:
    """Whether a method of a container takes arguments by these names."""
    if name == "pop" and not issubclass(kind, collections.OrderedDict):  # without a signature
        return False
    return takes_names(getattr(kind, name), kwargs)


_CONSTANT_CLASSES = (int, float, complex, str, bytes)
"""Classes whose class methods, such as `float.fromhex`, give constants for constants."""


def constant_method(function: Any) -> bool:
    """Whether a bound builtin method belongs to an immutable constant."""
    if not is_a(function, types.BuiltinMethodType | types.MethodWrapperType):
        return False  # an object of the program may answer anything
    owner = function.__self__
    if is_a(owner, torch.device) and function.__name__ in ("__enter__", "__exit__"):
        return False
    if is_a(owner, CLASSES) and is_local(function):
        return False
    if is_a(owner, type) and owner in CLASSES:
        return is_makers(function)
    if is_a(owner, type) and owner in _CONSTANT_CLASSES:
        return is_a(function, types.BuiltinMethodType) and function.__name__[0] != "_"
    return owner is not None and not is_a(owner, type(torch)) and is_constant(owner)


__all__ = ["call_method_variable", "constant_method", "hold"]
