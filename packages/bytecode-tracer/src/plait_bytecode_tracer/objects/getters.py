"""`operator.attrgetter`, `itemgetter` and `methodcaller`: made, and called, in the trace."""

from __future__ import annotations

import operator
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.attributes import load_attribute
from plait_bytecode_tracer.objects.containers import get_item
from plait_bytecode_tracer.objects.objects import guarded_value
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    GetterVariable,
    Known,
    SequenceVariable,
    Variable,
)

GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)


@builtin(operator.attrgetter)
def attrgetter(frame: Frame, name: Variable, *names: Variable) -> Variable:
    if not all(isinstance(n, Known) and isinstance(n.value, str) for n in (name, *names)):
        fails(TypeError, "attribute name must be a string")
    return GetterVariable(operator.attrgetter, [name, *names])


@builtin(operator.itemgetter)
def itemgetter(frame: Frame, key: Variable, *keys: Variable) -> Variable:
    return GetterVariable(operator.itemgetter, [key, *keys])


@builtin(operator.methodcaller)
def methodcaller(frame: Frame, name: Variable, *args: Variable, **kwargs: Variable) -> Variable:
    if not isinstance(name, Known) or not isinstance(name.value, str):
        fails(TypeError, "method name must be a string")
    return GetterVariable(operator.methodcaller, [name, *args], kwargs)


def outside_getter(frame: Frame, getter: Known) -> GetterVariable:
    """A getter of the caller's, by its parts: it cannot change, but another may come."""
    real, source = getter.value, getter.source
    args, kwargs = parts_of(real)
    if source is None:
        named: dict[str, Variable] = {name: constant(value) for name, value in kwargs.items()}
        return GetterVariable(type(real), [constant(arg) for arg in args], named)
    read = frame.state.constants.name(parts_of)
    parts = Source(f"{read}({source.code})", f"the parts of {source.text}", source)
    held = frame.state.wrap(args, parts.element(0, "0"))
    given = frame.state.wrap(kwargs, parts.element(1, "1"))
    assert isinstance(held, SequenceVariable)
    assert isinstance(given, DictVariable)
    return GetterVariable(type(real), list(held.items), dict(given.items.items()))


def parts_of(getter: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a getter was made of."""
    made, args = getter.__reduce__()
    if isinstance(made, type):
        return args, {}
    return made.args + args, made.keywords  # a methodcaller with arguments by name


def call_getter(
    frame: Frame, getter: GetterVariable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """What a getter gives for an object."""
    if len(args) != 1 or kwargs:
        name = getter.kind.__name__
        if kwargs:
            fails(TypeError, f"{name}() takes no keyword arguments")
        fails(TypeError, f"{name} expected 1 argument, got {len(args)}")
    if getter.kind is operator.methodcaller:
        method = load_attribute(frame, args[0], _text(frame, getter.args[0]))
        return frame.call(method, getter.args[1:], dict(getter.kwargs))
    found = []
    for key in getter.args:
        if getter.kind is operator.itemgetter:
            found.append(get_item(frame, args[0], key))
            continue
        value = args[0]
        for name in _text(frame, key).split("."):
            value = load_attribute(frame, value, name)
        found.append(value)
    return found[0] if len(found) == 1 else SequenceVariable(found, tuple)


def _text(frame: Frame, name: Variable) -> str:
    if not isinstance(name, Known) or not isinstance(name.value, str):
        raise TraceBreakError("GB0007", "an attribute whose name is not known")
    found: str = guarded_value(frame, name)
    return found
