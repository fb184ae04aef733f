"""Iterating over tracked values."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame, constant
from plait_bytecode_tracer.variables import (
    DictVariable,
    IteratorVariable,
    Known,
    SequenceVariable,
    SetVariable,
    TensorVariable,
    Variable,
)

_MODULE_LISTS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)


def iterate(frame: Frame, value: Variable) -> IteratorVariable:
    """An iterator over a value, as `iter` gives it; a list is read as it changes."""
    if isinstance(value, IteratorVariable):
        return value
    position = -1

    def next_of_list() -> Variable | None:
        nonlocal position
        position += 1
        live = value.items if isinstance(value, SequenceVariable) else ()
        return live[position] if position < len(live) else None

    if isinstance(value, SequenceVariable):
        return IteratorVariable(next_of_list)
    return over(list(elements(frame, value)))


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
            yield from [constant(key) for key in value.items]
        case SetVariable():
            yield from [constant(item) for item in value.items]
        case TensorVariable():
            yield from _rows(frame, value)
        case Known():
            yield from _known_elements(frame, value)
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
    if isinstance(real, str | bytes | range | tuple | torch.Size):
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
    if isinstance(real, enum.EnumMeta):
        members: list[Any] = list(real)
        yield from [constant(item) for item in members]
        return
    raise TraceBreakError("GB0009", f"iteration over a {type(real).__name__}")
