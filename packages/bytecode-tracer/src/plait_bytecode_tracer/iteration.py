"""Iterating over tracked values."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from plait_bytecode_tracer.containers import constant_key, describe
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame, constant
from plait_bytecode_tracer.raising import PythonError, exception_class, fails
from plait_bytecode_tracer.variables import (
    DictVariable,
    IteratorVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    TensorVariable,
    Variable,
    ViewVariable,
    is_constant,
    is_fixed,
    key_variable,
)

_MODULE_LISTS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)


def iterate(frame: Frame, value: Variable) -> IteratorVariable:
    """An iterator over a value, as `iter` gives it; a list is read as it changes."""
    if isinstance(value, IteratorVariable):
        return value
    position: int | None = -1

    def next_of_list() -> Variable | None:
        nonlocal position
        if position is None or not isinstance(value, SequenceVariable):
            return None
        position += 1
        if position < len(value.items):
            return value.items[position]
        position = None  # exhausted, also if the list grows
        return None

    if isinstance(value, SequenceVariable):
        return IteratorVariable(next_of_list, of_list=value.kind is list)
    if isinstance(value, DictVariable | SetVariable):
        return _iterate_keys(value)
    if isinstance(value, ViewVariable):
        return _iterate_view(value)
    if isinstance(value, ObjectVariable) or (isinstance(value, Known) and _has_own_class(value)):
        found = _by_iter_method(frame, value)
        if found is not None:
            return found
    return over(list(elements(frame, value)))


def _has_own_class(value: Known) -> bool:
    """Whether a class of the user's decides how an object from outside iterates."""
    real = value.value
    listed = isinstance(real, torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict)
    return not (is_fixed(real) or listed or isinstance(real, type | enum.EnumMeta))


def _iterate_keys(value: DictVariable | SetVariable) -> IteratorVariable:
    """An iterator over the keys of a dict or the elements of a set, which may not change size."""
    remaining = iter([key_variable(key) for key in value.items])
    size = len(value.items)

    def step() -> Variable | None:
        if len(value.items) != size:
            name = "Set" if isinstance(value, SetVariable) else "dictionary"
            fails(RuntimeError, f"{name} changed size during iteration")
        return next(remaining, None)

    return IteratorVariable(step)


def _iterate_view(value: ViewVariable) -> IteratorVariable:
    keys = _iterate_keys(value.owner)

    def step() -> Variable | None:
        key = keys.next_()
        if key is None or value.name == "keys":
            return key
        item = value.owner.items[constant_key(key)]
        return item if value.name == "values" else SequenceVariable([key, item], tuple)

    return IteratorVariable(step)


def next_item(frame: Frame, iterator: Variable) -> Variable | None:
    """`next(iterator)`; None where Python raises StopIteration."""
    if isinstance(iterator, IteratorVariable):
        return iterator.next_()
    from plait_bytecode_tracer.calls import call
    from plait_bytecode_tracer.objects import special_method

    method = special_method(frame, iterator, "__next__")
    if method is None:
        raise TraceBreakError("GB0009", f"next() of a {describe(iterator)}")
    try:
        return call(frame, method, [], {})
    except PythonError as error:
        if not issubclass(exception_class(error.value), StopIteration):
            raise
        return None


def _by_iter_method(frame: Frame, value: Variable) -> IteratorVariable | None:
    """An iterator as the object's class makes it, if it does."""
    from plait_bytecode_tracer.calls import call
    from plait_bytecode_tracer.objects import special_method

    method = special_method(frame, value, "__iter__")
    if method is not None:
        made = call(frame, method, [], {})
        if isinstance(made, IteratorVariable):
            return made
        return IteratorVariable(lambda: next_item(frame, made))
    getter = special_method(frame, value, "__getitem__")
    if getter is None:
        return None
    position = -1

    def step() -> Variable | None:
        nonlocal position
        position += 1
        try:
            return call(frame, getter, [constant(position)], {})
        except PythonError as error:
            if not issubclass(exception_class(error.value), IndexError):
                raise
            return None

    return IteratorVariable(step)


def over(items: Sequence[Variable]) -> IteratorVariable:
    """An iterator over given elements."""
    remaining = iter(items)
    return IteratorVariable(lambda: next(remaining, None))


def elements(frame: Frame, value: Variable) -> Iterator[Variable]:
    """The elements that iterating over a value gives."""
    match value:
        case IteratorVariable():
            while (item := value.next_()) is not None:
                yield item
        case SequenceVariable():
            yield from list(value.items)
        case DictVariable():
            yield from [key_variable(key) for key in value.items]
        case ViewVariable():
            yield from elements(frame, _iterate_view(value))
        case SetVariable():
            yield from [key_variable(item) for item in value.items]
        case TensorVariable():
            yield from _rows(frame, value)
        case Known():
            yield from _known_elements(frame, value)
        case ObjectVariable():
            made = _by_iter_method(frame, value)
            if made is None:
                fails(TypeError, f"{value.cls.__name__!r} object is not iterable")
            yield from elements(frame, made)
        case _:
            raise TraceBreakError("GB0009", "iteration over an object that cannot be traced")


def _rows(frame: Frame, tensor: TensorVariable) -> Iterator[Variable]:
    if tensor.fake.dim() == 0:
        raise TraceBreakError("GB0008", "iteration over a 0-d tensor")
    node, result = frame.state.emit("call_method", "unbind", [tensor, constant(0)], {})
    rows = frame.state.tensor_result(node, result)
    if isinstance(rows, SequenceVariable):
        yield from rows.items


def _known_elements(frame: Frame, value: Known) -> Iterator[Variable]:
    from plait_bytecode_tracer.attributes import load_attribute

    real = value.value
    if is_constant(real) and isinstance(real, str | bytes | range | tuple | frozenset):
        yield from [constant(item) for item in real]
        return
    if isinstance(real, torch.nn.ModuleList | torch.nn.Sequential) and value.source is not None:
        modules = load_attribute(frame, value, "_modules")
        if isinstance(modules, DictVariable):
            yield from list(modules.items.values())
            return
    if isinstance(real, torch.nn.ModuleDict) and value.source is not None:
        modules = load_attribute(frame, value, "_modules")
        if isinstance(modules, DictVariable):
            yield from [constant(key) for key in modules.items]
            return
    if is_fixed(real) and hasattr(real, "__iter__"):
        yield from [constant(item) for item in real]
        return
    if is_constant(real):
        name = type(real).__name__
        shown = f"numpy.{name}" if type(real).__module__ == "numpy" else name
        fails(TypeError, f"{shown!r} object is not iterable")
    if isinstance(real, enum.EnumMeta):
        members: list[Any] = list(real)
        yield from [constant(item) for item in members]
        return
    made = None if isinstance(real, type) else _by_iter_method(frame, value)
    if made is None:
        raise TraceBreakError("GB0009", f"iteration over a {type(real).__name__}")
    yield from elements(frame, made)
