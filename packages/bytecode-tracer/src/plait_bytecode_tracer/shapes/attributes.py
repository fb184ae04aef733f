"""Attributes of symbolic numbers, and of tensors with symbolic sizes."""

from __future__ import annotations

import functools

import torch

from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.graph.results import number_of, size_node
from plait_bytecode_tracer.shapes.arithmetic import FUNCTIONS
from plait_bytecode_tracer.values.lookup import is_defined
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    Known,
    SequenceVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)

_METHODS = {int: ("bit_length", "bit_count", "__index__"), float: ("is_integer",)}
_ITSELF = {int: ("real", "numerator"), float: ("real",)}
"""Attributes that are the number itself."""
_FIXED: dict[type, dict[str, int | float]] = {
    int: {"imag": 0, "denominator": 1},
    float: {"imag": 0.0},
}
"""Attributes that all numbers of a class have the same."""


def number_attribute(frame: Frame, owner: SymbolVariable, name: str) -> Variable | None:
    """An attribute of a number: a method that is known, or one of the number's value."""
    if name == "__class__":
        return constant(owner.kind)
    if name in _METHODS.get(owner.kind, ()):
        return BoundVariable(Known(getattr(owner.kind, name)), owner)
    if name in _ITSELF.get(owner.kind, ()):
        return owner
    if name in _FIXED.get(owner.kind, {}):
        return constant(_FIXED[owner.kind][name])
    if not is_defined(owner.kind, name):
        return None
    if getattr(owner.kind, name) in FUNCTIONS:
        return BoundVariable(Known(getattr(owner.kind, name)), owner)
    return constant(getattr(owner.owner.specialise(owner), name))


def symbolic_attribute(frame: Frame, owner: TensorVariable, name: str) -> Variable:
    """`shape` or `nbytes` of a tensor with symbolic sizes."""
    if name == "shape":
        return shape_of(frame, owner)
    node = functools.partial(_attribute_node, frame, owner.node, name)
    fake = owner.fake
    value = fake.numel() * fake.itemsize if name == "nbytes" else getattr(fake, name)
    return number_of(frame.state, value, node)


def _attribute_node(frame: Frame, node: torch.fx.Node, name: str) -> torch.fx.Node:
    made = node.graph.call_function(getattr, (node, name))
    frame.state.mark(made)
    return made


def shape_of(frame: Frame, owner: TensorVariable) -> Variable:
    """The sizes of a tensor."""
    if not owner.fake._has_symbolic_sizes_strides:
        return constant(owner.fake.shape)
    items = [size_of(frame, owner, dim) for dim in range(owner.fake.dim())]
    if all(isinstance(item, Known) for item in items):
        return constant(torch.Size([item.value for item in items if isinstance(item, Known)]))
    return SequenceVariable(items, torch.Size)


def size_of(frame: Frame, owner: TensorVariable, dim: int) -> Variable:
    """One size of a tensor."""
    node = functools.partial(size_node, frame.state, owner.node, dim)
    return number_of(frame.state, owner.fake.size(dim), node)
