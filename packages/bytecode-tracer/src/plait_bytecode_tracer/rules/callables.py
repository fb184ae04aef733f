"""Callable objects of C classes, made in the trace or outside: partials, comparison keys."""

from __future__ import annotations

import functools
import types

from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.comparison import ask
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.residual.steps import Thunk
from plait_bytecode_tracer.rules.objects import callable_
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.twins.registry import TWINS
from plait_bytecode_tracer.twins.small import ComparisonKey
from plait_bytecode_tracer.values.variables import (
    CallableVariable,
    DictVariable,
    Known,
    ObjectVariable,
    PartialVariable,
    SequenceVariable,
    ThunkVariable,
    Variable,
)


@builtin(functools.partial)
def partial(frame: Frame, function: Variable, /, *args: Variable, **kwargs: Variable) -> Variable:
    if not plain_value(callable_(frame, function)):
        fails(TypeError, "the first argument must be callable")
    if isinstance(function, PartialVariable) and not function.attributes:
        args = (*function.args.items, *args)
        kwargs = {**function.kwargs.items, **kwargs}
        function = function.function
    return PartialVariable(function, SequenceVariable(list(args), tuple), DictVariable(kwargs))


@builtin(Thunk)
def thunk(frame: Frame, function: Variable, values: Variable) -> Variable:
    assert isinstance(values, SequenceVariable)
    return ThunkVariable(function, values, DictVariable({}))


def outside_partial(frame: Frame, function: Known) -> Variable:
    """A partial of the caller's, by its parts."""
    real, source = function.value, function.source
    if source is None:
        source = frame.state.constants.source(real, "a partial function")
    wrap = frame.state.wrap
    args = wrap(real.args, source.attribute("args"))
    named = wrap(real.keywords, source.attribute("keywords"))
    assert isinstance(named, DictVariable)
    if isinstance(args, Known):
        args = SequenceVariable([constant(item) for item in args.value], tuple)
    assert isinstance(args, SequenceVariable)
    return PartialVariable(wrap(real.func, source.attribute("func")), args, named)


@builtin(functools.cmp_to_key)
def cmp_to_key(frame: Frame, mycmp: Variable) -> Variable:
    def run(frame: Frame, obj: Variable) -> Variable:
        return ObjectVariable(ComparisonKey, {"_compare": mycmp, "obj": obj})

    kind = TWINS[ComparisonKey].kind
    return CallableVariable(kind, [mycmp], {}, run, functools.cmp_to_key)


# Bound methods.


@builtin(*(value for name, value in vars(types.MethodType).items() if name == "__get__"))
def get_method(
    frame: Frame, method: Variable, instance: Variable, owner: Variable | None = None, /
) -> Variable:
    """A bound method is bound once and for all, from 3.13 on: before, its function was bound."""
    absent = [v is None or (isinstance(v, Known) and v.value is None) for v in (instance, owner)]
    if all(absent):
        fails(TypeError, "__get__(None, None) is invalid")
    return method


@builtin(types.MethodType.__call__)
def call_method(frame: Frame, method: Variable, /, *args: Variable, **kwargs: Variable) -> Variable:
    return frame.call(method, list(args), kwargs)


@builtin(types.MethodType.__eq__)
def equal_methods(frame: Frame, method: Variable, other: Variable, /) -> Variable:
    return ask(frame, method, "__eq__", other)


@builtin(types.MethodType.__ne__)
def unequal_methods(frame: Frame, method: Variable, other: Variable, /) -> Variable:
    return ask(frame, method, "__ne__", other)
