"""What torch calls return, as variables."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.tensors.wrappers import class_of
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    Known,
    SequenceVariable,
    TensorVariable,
    Variable,
)

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState


_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PARTS = (torch.Tensor, *_SYMBOLIC)
_FAKES = (FakeTensor, torch.Tensor)


class NamedResult(SequenceVariable):
    """A torch.return_types tuple; its fields have names."""

    __slots__ = ()


def tensor_result(state: TraceState, node: fx.Node, result: Any) -> Variable:
    """What a torch call returned, as a variable; elements of tuples become nodes."""
    if isinstance(result, torch.Tensor):
        if type(result) not in _FAKES:
            return TensorVariable(node, result, cls=class_of(result))
        return TensorVariable(node, result)
    if isinstance(result, _SYMBOLIC):
        return _number_result(state, node, result)
    if isinstance(result, torch.Size):
        return _size_result(state, node, result)
    if isinstance(result, tuple | list) and any(isinstance(r, _PARTS) for r in result):
        items: list[Variable] = []
        for position, item in enumerate(result):
            part = state.graph.call_function(operator.getitem, (node, position))
            part.meta["val"] = item
            state.mark(part)
            items.append(state.tensor_result(part, item))
        if type(result) in (tuple, list):
            return SequenceVariable(items, type(result))
        return NamedResult(items, type(result), original=None)
    if result is None:  # called for what it does
        state.mutates_tensors = True
        return Known(None)
    if is_constant(result):
        state.graph.erase_node(node)
        return Known(result)
    raise TraceBreakError("GB0009", f"a torch call that returns a {type(result).__name__}")


def _number_result(state: TraceState, node: fx.Node, result: Any) -> Variable:
    made = state.need_symbols().result(result, node)
    if isinstance(made, Known) and not node.users:
        state.graph.erase_node(node)
    return made


def _size_result(state: TraceState, node: fx.Node, result: torch.Size) -> Variable:
    """A size, of which each symbolic element becomes a node where it is used."""
    if not any(isinstance(size, torch.SymInt) for size in result):
        state.graph.erase_node(node)
        return Known(result)
    items = [
        number_of(state, size, functools.partial(_element_node, state, node, place))
        for place, size in enumerate(result)
    ]
    return SequenceVariable(items, torch.Size)


def _element_node(state: TraceState, node: fx.Node, place: int) -> fx.Node:
    with state.graph.inserting_after(node):
        part = state.graph.call_function(operator.getitem, (node, place))
    state.mark(part)
    return part


def number_of(state: TraceState, value: Any, node: Callable[[], fx.Node]) -> Variable:
    """An int or float that torch gives, symbolic or not; `node` puts it into the graph."""
    if isinstance(value, _SYMBOLIC):
        return state.need_symbols().result(value, node)
    return Known(value)


def size_node(state: TraceState, node: fx.Node, dim: int) -> fx.Node:
    """A size of a tensor of the graph, as an int in it."""
    known = state.sizes.get((node, dim))
    if known is None:
        known = node.graph.call_method("size", (node, dim))
        known.meta["val"] = node.meta["val"].size(dim)
        state.mark(known)
        state.sizes[node, dim] = known
    return known
