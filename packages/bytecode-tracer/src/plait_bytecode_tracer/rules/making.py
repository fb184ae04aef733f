"""Functions that define classes, or make what only real code can make: run on stand-ins."""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Iterable
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.making.building import (
    build_class,
    change,
    delete_class_attribute,
    make,
    set_class_attribute,
)
from plait_bytecode_tracer.making.made import Recipe, Step
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.instances import instantiate
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.statics import MISSING, guard_class, is_python, static_attribute
from plait_bytecode_tracer.rules.objects import callable_
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    DictVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    SymbolVariable,
    Variable,
)


@builtin(builtins.__build_class__)
def build_class_(
    frame: Frame, body: Variable, name: Variable, /, *bases: Variable, **kwargs: Variable
) -> Variable:
    return build_class(frame, body, name, list(bases), kwargs)


@builtin(type.__call__)
def call_type(frame: Frame, cls: Variable, /, *args: Variable, **kwargs: Variable) -> Variable:
    wanted = plain_value(cls)
    if wanted is type:
        return frame.call(cls, list(args), kwargs)
    return instantiate(frame, wanted, list(args), kwargs)


@builtin(type.__init__)
def type_init(frame: Frame, cls: Variable, /, *args: Variable, **kwargs: Variable) -> Variable:
    return constant(None)


@builtin(type.__prepare__)
def type_prepare(frame: Frame, /, *args: Variable, **kwargs: Variable) -> Variable:
    return DictVariable({})


@builtin(type.mro)
def order_of_bases(frame: Frame, cls: Variable, /) -> Variable:
    wanted = plain_value(cls)
    if not isinstance(wanted, type):
        raise TraceBreakError("GB0006", "type.mro() of what is no class")
    return SequenceVariable([constant(base) for base in type.mro(wanted)], list)


@builtin(type.__setattr__)
def type_setattr(frame: Frame, cls: Variable, name: Variable, value: Variable, /) -> Variable:
    set_class_attribute(frame, _made_class(frame, cls), plain_value(name), value)
    return constant(None)


@builtin(type.__delattr__)
def type_delattr(frame: Frame, cls: Variable, name: Variable, /) -> Variable:
    delete_class_attribute(frame, _made_class(frame, cls), plain_value(name))
    return constant(None)


@builtin(object.__dict__["__init_subclass__"])
def init_subclass(frame: Frame, cls: Variable, /, **kwargs: Variable) -> Variable:
    if kwargs:
        hook: Any = object.__dict__["__init_subclass__"]
        try:
            hook.__get__(None, plain_value(cls))(**dict.fromkeys(kwargs))
        except TypeError as error:
            raise python_error(error) from error
    return constant(None)


def _made_class(frame: Frame, cls: Variable) -> Known:
    if isinstance(cls, Known) and frame.state.made.is_made(cls.value):
        return cls
    raise TraceBreakError("GB0007", "a change of a class from elsewhere")


# What is made of values of the trace.


def _maker(function: Any) -> Builtin:
    """A rule that calls a function for real, in the trace and in each call."""

    def rule(frame: Frame, /, *args: Variable, **kwargs: Variable) -> Variable:
        return make(frame, function, list(args), kwargs)

    return rule


for _function in (
    *(property, classmethod, staticmethod, functools.cached_property),
    *(dataclasses.field, functools.singledispatchmethod, functools.partialmethod),
):
    builtin(_function)(_maker(_function))


def _made_here(frame: Frame, function: Any, args: list[Variable], kwargs: Any) -> Variable:
    """Make an object that says in which module it was made."""
    module = constant(frame.function.globals.get("__name__"))
    return make(frame, in_module, [constant(function), module, *args], kwargs)


def in_module(function: Any, module: str, *args: Any, **kwargs: Any) -> Any:
    """Call a function that notes the module of its caller."""
    found = function(*args, **kwargs)
    found.__module__ = module
    return found


@builtin(types.MethodType)
def method(frame: Frame, function: Variable, owner: Variable, /) -> Variable:
    if not plain_value(callable_(frame, function)):
        fails(TypeError, "first argument must be callable")
    if isinstance(owner, Known) and owner.value is None:
        fails(TypeError, "instance must not be None")
    return BoundVariable(function, owner)


@builtin(typing.TypeVar)
def type_variable(frame: Frame, /, *args: Variable, **kwargs: Variable) -> Variable:
    return _made_here(frame, typing.TypeVar, list(args), kwargs)


@builtin(typing.ParamSpec)
def parameter_specification(frame: Frame, /, *args: Variable, **kwargs: Variable) -> Variable:
    return _made_here(frame, typing.ParamSpec, list(args), kwargs)


@builtin(typing.NewType)
def new_type(frame: Frame, /, *args: Variable, **kwargs: Variable) -> Variable:
    return _made_here(frame, typing.NewType, list(args), kwargs)


@builtin(collections.namedtuple)
def named_tuple(frame: Frame, /, *args: Variable, **kwargs: Variable) -> Variable:
    if "module" not in kwargs:
        kwargs["module"] = constant(frame.function.globals.get("__name__"))
    return make(frame, collections.namedtuple, list(args), kwargs)


@builtin(typing.NamedTuple)
def typed_named_tuple(frame: Frame, /, *args: Variable, **kwargs: Variable) -> Variable:
    return _made_here(frame, typing.NamedTuple, list(args), kwargs)


def _metaclass_maker(maker: Any) -> Builtin:
    """A rule for the `__new__` of a metaclass of the standard library."""

    def rule(frame: Frame, /, *args: Variable, **kwargs: Variable) -> Variable:
        for base in elements(frame, args[2]):
            _check_base(frame, base)
        if maker is enum.EnumMeta.__new__ and any(map(_is_symbolic, _values_of(args[3]))):
            raise TraceBreakError("GB0009", "a number that changes as a member of an enum")
        return make(frame, maker, list(args), kwargs)

    return rule


def _values_of(namespace: Variable) -> Iterable[Variable]:
    """What the body of a class has put into its namespace."""
    table = namespace.base if isinstance(namespace, ObjectVariable) else namespace
    return table.items.values() if isinstance(table, DictVariable) else ()


def _is_symbolic(value: Variable) -> bool:
    """Whether a member's value is not known in the trace; `enum` computes with it."""
    if isinstance(value, SequenceVariable):
        return any(map(_is_symbolic, value.items))
    return isinstance(value, SymbolVariable)


_PLAIN_MODULES = frozenset(
    {"enum", "typing", "builtins", "abc", "collections", "typing_extensions"}
)


def _check_base(frame: Frame, base: Variable) -> None:
    """Nothing of the user's may run while the metaclass makes a class."""
    for cls in getattr(plain_value(base), "__mro__", ()):
        if cls.__module__ in _PLAIN_MODULES or frame.state.made.is_made(cls):
            continue
        for name in _CALLED:
            function = cls.__dict__.get(name)
            function = getattr(function, "__func__", function)
            if is_python(function) and function.__module__ not in _PLAIN_MODULES:
                text = f"{name} of {cls.__name__} while a class is made"
                raise TraceBreakError("GB0009", text)


_CALLED = (
    *("__new__", "__init__", "__init_subclass__", "__set_name__"),
    *("_new_member_", "__eq__", "__hash__", "__or__", "__and__", "_missing_"),
)

_typing: Any = typing  # its metaclasses are not in the stubs
for _meta in (enum.EnumMeta, _typing._TypedDictMeta, _typing.NamedTupleMeta):
    builtin(_meta.__new__)(_metaclass_maker(_meta.__new__))


# What changes a class that the trace has made.


def _changer(function: Any) -> Builtin:
    """A rule that calls a function for real on a class, in the trace and in each call."""

    def rule(frame: Frame, cls: Variable, /, *args: Variable, **kwargs: Variable) -> Variable:
        target = _made_class(frame, cls)
        found = change(frame, target, function, [cls, *args], kwargs)
        return frame.state.made.given(found)

    return rule


_abc: Any = abc  # its functions in C are not in the stubs
_function_meta: Any = type(torch.autograd.Function)  # its `__init__` only numbers classes
for _function in (_abc._abc_init, _abc._abc_register, _function_meta.__init__):
    builtin(_function)(_changer(_function))


_process: Any = vars(dataclasses)["_process_class"]


@builtin(_process)
def process_class(frame: Frame, cls: Variable, /, *args: Variable, **kwargs: Variable) -> Variable:
    """`@dataclass`: what it writes into the class comes of what the class holds."""
    target = _made_class(frame, cls)
    if is_python(static_attribute(type(target.value), "__setattr__")):
        raise TraceBreakError("GB0007", "a dataclass whose metaclass intercepts writes")
    for value in vars(target.value).values():
        getter = static_attribute(type(value), "__get__")
        if getter is not MISSING and not isinstance(getter, types.WrapperDescriptorType):
            raise TraceBreakError("GB0007", "a dataclass with descriptors of Python")
    guard_class(frame, target.value, "__dataclass_fields__")
    found = change(frame, target, _process, [cls, *args], kwargs)
    if found is target.value:
        return target
    made = frame.state.made
    step = made.recipe(target.value).then.pop()
    made.add(found, Recipe(step))
    made.recipe(target.value).then.append(Step(None, (Known(found),)))
    return Known(found)
