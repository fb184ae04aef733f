"""Tensors without dimensions that are given for sizes and places: integers, which torch reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.values.variables import SequenceVariable, TensorVariable

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

_FUNCTIONS = frozenset(
    {
        *("arange", "zeros", "ones", "full", "empty", "eye"),
        *("rand", "randn", "randint", "randperm"),
    }
)
"""Functions all of whose arguments by position are numbers."""
_METHODS = frozenset(
    {
        *("new_zeros", "new_ones", "new_full", "new_empty", "expand", "view", "reshape"),
        *("repeat", "narrow", "select", "unflatten"),
    }
)
"""Functions of a tensor and numbers."""


def with_read_sizes(state: TraceState, target: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a call by position, with the integers that stay open in tensors' places."""
    if not state.policy.data_sizes:
        return args
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name not in _FUNCTIONS and name not in _METHODS:
        return args
    first = 0 if name in _FUNCTIONS else 1
    return [*args[:first], *(_read(state, each) for each in args[first:])]


def _read(state: TraceState, value: Any) -> Any:
    if isinstance(value, SequenceVariable) and value.kind in (list, tuple):
        return SequenceVariable([_read(state, item) for item in value.items], value.kind)
    if not isinstance(value, TensorVariable) or value.fake.dim():
        return value
    from plait_bytecode_tracer.shapes.data import open_integer

    found = open_integer(state, value, "index")
    return value if found is None else found
