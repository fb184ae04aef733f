"""Calls: who answers them, by what is called; a break where nobody does."""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, fails
from plait_bytecode_tracer.frames.arity import refuse
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.frames.inlining import inline, inline_traced
from plait_bytecode_tracer.objects.attributes import load_attribute
from plait_bytecode_tracer.objects.builtins_on_tensors import operator_on_tensors
from plait_bytecode_tracer.objects.caches import call_cached
from plait_bytecode_tracer.objects.containers import describe
from plait_bytecode_tracer.objects.descriptors import call_descriptor
from plait_bytecode_tracer.objects.folding import FOLDED, fold, has_tensor
from plait_bytecode_tracer.objects.getters import GETTERS, call_getter, outside_getter
from plait_bytecode_tracer.objects.instances import call_class, new_instance
from plait_bytecode_tracer.objects.methods import call_method_variable, constant_method
from plait_bytecode_tracer.objects.named_classes import require_own_name
from plait_bytecode_tracer.objects.objects import special_method
from plait_bytecode_tracer.objects.specials import call_folded, canonical
from plait_bytecode_tracer.objects.statics import (
    MISSING,
    MODULE_CALL,
    guard_class,
    static_attribute,
)
from plait_bytecode_tracer.rules.callables import outside_partial
from plait_bytecode_tracer.rules.higher_order import operator_rule
from plait_bytecode_tracer.rules.modules import CALL_WITH_HOOKS, module_call
from plait_bytecode_tracer.rules.registry import (
    find_builtin,
    fits,
    takes_names,
)
from plait_bytecode_tracer.rules.weak import calls_as_reference, referent
from plait_bytecode_tracer.shapes.calls import call_with_numbers
from plait_bytecode_tracer.tensors.bodies import call_opaque
from plait_bytecode_tracer.tensors.function_modes import through_mode_of
from plait_bytecode_tracer.tensors.leaves import is_leaf, is_of_torch, reads_tensor
from plait_bytecode_tracer.tensors.subclasses import dispatch, holds_subclass
from plait_bytecode_tracer.tensors.torch_calls import call_torch
from plait_bytecode_tracer.values.classes import name_in_errors
from plait_bytecode_tracer.values.constants import UNCHANGING
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.numpy_objects import is_of_numpy
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    CallableVariable,
    FunctionVariable,
    GetterVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    OpaqueVariable,
    PartialVariable,
    ReferenceVariable,
    TensorVariable,
    Variable,
)

_CALLED_DIRECTLY = (*(types.FunctionType, types.MethodType, torch.nn.Module, functools.partial),)
"""Callables whose result is what the Python function that they call returns."""
_INTERNAL = frozenset({"_testcapi", "_testinternalcapi"})
"""Modules in which the interpreter shows its C functions, to be tested."""
_DESCRIPTORS = types.MethodDescriptorType | types.WrapperDescriptorType


def call(
    frame: Frame, function: Variable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """`function(*args, **kwargs)`."""
    match function:
        case Known():
            try:
                return _call_known(frame, function, args, kwargs)
            except PythonError as error:
                if not is_a(function.value, types.FunctionType):
                    name = getattr(function.value, "__qualname__", "a call")
                    require_own_name(name, error, [*args, *kwargs.values()])
                raise
        case FunctionVariable():
            return inline_traced(frame, function, args, kwargs)
        case BoundVariable():
            return call(frame, function.function, [function.self, *args], kwargs)
        case MethodVariable():
            frame.state.is_direct = False
            return call_method_variable(frame, function, args, kwargs)
        case OpaqueVariable():
            return call_opaque(frame, function, args, kwargs)
        case PartialVariable():
            merged = {**dict(function.kwargs.items.items()), **kwargs}
            return call(frame, function.function, [*function.args.items, *args], merged)
        case GetterVariable():
            frame.state.is_direct = False
            return call_getter(frame, function, args, kwargs)
        case CallableVariable():
            return _call_made(frame, function, args, kwargs)
        case ObjectVariable():
            direct, frame.state.is_direct = frame.state.is_direct, False
            called = special_method(frame, function, "__call__")
            frame.state.is_direct = direct
            if called is None:
                fails(TypeError, f"{name_in_errors(function.cls)!r} object is not callable")
            return call(frame, called, args, kwargs)
    raise TraceBreakError("GB0002", f"a call of a {describe(function)}")


def _call_known(
    frame: Frame, function: Known, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """A call of a real object: by a rule, as NumPy's or torch's, inlined, or as its class says."""
    real = canonical(function.value)
    intercepted = through_mode_of(frame, real, args, kwargs)
    if intercepted is not None:
        return intercepted
    if frame.state.symbols is not None:
        found = call_with_numbers(frame, real, args, kwargs)
        if found is not None:
            return found
    rule = find_builtin(real)
    if rule is not None:
        if rule is not module_call:
            frame.state.is_direct = False
        if not takes_names(real, kwargs) or not fits(rule, frame, *args, **kwargs):
            refuse(real, args, kwargs)
        return rule(frame, *args, **kwargs)
    stands_for = frame.state.made.variables.get(id(real))
    if stands_for is not None and not isinstance(stands_for, Known):
        return call(frame, stands_for, args, kwargs)
    if is_of_numpy(real):
        from plait_bytecode_tracer.arrays.calls import call_numpy

        frame.state.is_direct = False
        of_numpy = call_numpy(frame, real, args, kwargs)
        if of_numpy is not None:
            return of_numpy
    if is_a(real, type):
        frame.state.is_direct = False
        return call_class(frame, function, args, kwargs)
    operator = operator_rule(real) if is_a(real, HigherOrderOperator) else None
    if operator is not None:
        return operator(frame, *args, **kwargs)
    if not is_a(real, _CALLED_DIRECTLY):
        frame.state.is_direct = False  # what a method returns may be changed by what called it
    if is_of_torch(real) and holds_subclass([args, kwargs]):
        return dispatch(frame, real, args, kwargs)
    if is_leaf(real) and not _calls_back(real, args, kwargs):
        return call_torch(frame, real, args, kwargs)
    if is_a(real, types.FunctionType):
        return inline(frame, real, args, kwargs)
    return _call_object(frame, function, real, args, kwargs)


def _call_object(
    frame: Frame,
    function: Known,
    real: Any,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    """A call of an object that is no function: a method, module, descriptor, cache, partial..."""
    if is_a(real, weakref.ref) and calls_as_reference(real) and not args and not kwargs:
        return referent(frame, function)
    if is_a(real, types.MethodType):
        owner = _receiver(frame, function)
        return call(frame, frame.state.made.given(real.__func__), [owner, *args], kwargs)
    if is_a(real, torch.nn.Module):
        return _call_module(frame, function, args, kwargs)
    compiled = getattr(type(real), "plait_traced_function", None)
    if compiled is not None:
        traced = _part(frame, function, "plait_traced_function")
        return call(frame, traced, args, kwargs)
    if is_a(real, types.ClassMethodDescriptorType) and args:
        of_class = MethodVariable(args[0], real.__name__)
        return call_method_variable(frame, of_class, args[1:], kwargs)
    if is_a(real, _DESCRIPTORS) and args:
        return call_descriptor(frame, real, args, kwargs)
    if is_a(real, types.MethodWrapperType):
        if reads_tensor(real) and isinstance(args[0], TensorVariable):
            return load_attribute(frame, args[0], getattr(real.__self__, "__name__", ""))
        descriptor = static_attribute(type(real.__self__), real.__name__)
        if isinstance(descriptor, _DESCRIPTORS):
            return call_descriptor(frame, descriptor, [_receiver(frame, function), *args], kwargs)
    if is_a(real, functools._lru_cache_wrapper):
        frame.state.is_direct = False
        return call_cached(frame, function, args, kwargs)
    if _folds(real):
        if has_tensor([args, kwargs]):
            return operator_on_tensors(frame, real, args, kwargs)
        return call_folded(frame, real, args, kwargs)
    if is_a(real, functools.partial):
        return call(frame, outside_partial(frame, function), args, kwargs)
    if is_a(real, GETTERS):
        return call_getter(frame, outside_getter(frame, function), args, kwargs)
    if is_a(real, torch.jit.ScriptFunction):
        scripted = getattr(real, "_torchdynamo_inline", None)  # the Python of it
        if isinstance(scripted, types.FunctionType):
            return inline(frame, scripted, args, kwargs)
    return _call_by_class(frame, function, real, args, kwargs)


def _call_by_class(
    frame: Frame,
    function: Known,
    real: Any,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    """A call of an object as its class says; a break where that does not tell."""
    method = _ruled_method(real)
    if method is not None:
        return call(frame, constant(method), [_receiver(frame, function), *args], kwargs)
    named = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
    name = real.__qualname__ if is_a(real, named) else type(real).__name__
    if not is_a(real, types.BuiltinFunctionType | types.MethodDescriptorType):
        method = static_attribute(type(real), "__call__")
        guard_class(frame, type(real), "__call__")
        if isinstance(method, types.FunctionType):
            return inline(frame, method, [function, *args], kwargs)
        if method is not MISSING and find_builtin(method) is not None:
            return call(frame, constant(method), [function, *args], kwargs)
    if is_a(real, types.BuiltinMethodType) and real.__name__ == "__new__":
        return new_instance(frame, real, args, kwargs)
    if getattr(real, "__module__", None) in _INTERNAL:
        raise TraceBreakError("GB0018", f"{name} reaches into the interpreter")
    if not callable(real):
        return fold(real, [], {})  # that fails, in Python's words
    raise TraceBreakError("GB0002", f"a call of {name}, which is not traced")


def _call_made(
    frame: Frame, function: CallableVariable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    frame.state.is_direct = False
    if isinstance(function, ReferenceVariable) and not args and not kwargs:
        return referent(frame, function)
    if len(args) != 1 or kwargs:
        raise TraceBreakError("GB0006", f"a {function.kind.__name__} called with other arguments")
    return function.run(frame, *args)


def _ruled_method(real: Any) -> Any:
    """What a bound method of a C class is of its class, where there is a rule for it."""
    if not is_a(real, types.BuiltinMethodType) or is_a(real.__self__, types.ModuleType):
        return None
    descriptor = static_attribute(type(real.__self__), real.__name__)
    known = find_builtin(descriptor) is not None or is_a(real.__self__, UNCHANGING)
    return descriptor if known else None


def _receiver(frame: Frame, method: Known) -> Variable:
    return _part(frame, method, "__self__")


def _part(frame: Frame, owner: Known, name: str) -> Variable:
    """What an object that is called holds under a name."""
    value = getattr(owner.value, name)
    if owner.source is not None:
        return frame.state.wrap(value, owner.source.attribute(name))
    return frame.state.made.given(value)


def _folds(real: Any) -> bool:
    if not is_a(real, type | types.BuiltinFunctionType):  # others have a hash of their own
        return constant_method(real)
    try:
        return real in FOLDED or constant_method(real)
    except TypeError:
        return False


def _calls_back(real: Any, args: list[Variable], kwargs: dict[str, Variable]) -> bool:
    """Whether a function of torch, in Python, is given a module or function to call."""
    given = (*args, *kwargs.values())
    return isinstance(real, types.FunctionType) and any(
        isinstance(arg, FunctionVariable | BoundVariable | PartialVariable | ObjectVariable)
        or (isinstance(arg, Known) and isinstance(arg.value, torch.nn.Module | types.FunctionType))
        for arg in given
    )


def _call_module(
    frame: Frame, function: Known, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    compiled = static_attribute(type(function.value), "_plait_original")
    if compiled is not MISSING and function.source is not None:
        original = function.source.attribute("_plait_original")
        return call(
            frame, frame.state.wrap(compiled.__get__(function.value), original), args, kwargs
        )
    called = static_attribute(type(function.value), "__call__")
    for name in ("__call__", "_call_impl"):
        guard_class(frame, type(function.value), name)
    inner = static_attribute(type(function.value), "_call_impl")
    if called is not MODULE_CALL or inner is not CALL_WITH_HOOKS:
        return inline(frame, called, [function, *args], kwargs)
    return module_call(frame, function, *args, **kwargs)
