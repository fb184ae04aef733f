"""Variables as arguments of torch calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.values.constants import is_constant, is_definition
from plait_bytecode_tracer.values.numpy_objects import is_numpy_scalar
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    ObjectVariable,
    OpaqueVariable,
    SequenceVariable,
    SliceVariable,
    SubclassVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)


def number_of(scalar: Any) -> Any:
    """A scalar of NumPy as the number that torch takes it for.

    Raises TraceBreakError for others: torch takes a `numpy.bool_` for an int in one place, for a
    bool in another, and of complex ones the real part.
    """
    if scalar.dtype.kind not in "fiu":
        raise TraceBreakError("GB0009", f"a numpy.{type(scalar).__name__} as an argument of torch")
    return scalar.item()


def map_variables(
    value: Any,
    tensor: Callable[[TensorVariable | OpaqueVariable], Any],
    symbol: Callable[[SymbolVariable], Any],
) -> Any:
    """Tracked values as plain ones, tensors through `tensor`, symbolic numbers by `symbol`."""
    match value:
        case TensorVariable() | OpaqueVariable():
            return tensor(value)
        case SubclassVariable():
            raise TraceBreakError("GB0009", f"a {value.cls.__name__} as an argument")
        case SymbolVariable():
            return symbol(value)
        case Known():
            if not is_constant(value.value) and not is_definition(value.value):
                if isinstance(value.value, torch.Generator):
                    raise TraceBreakError("GB0009", "a random generator as an argument")
                raise TraceBreakError(
                    "GB0009", f"a {type(value.value).__name__} as an argument of a torch call"
                )
            return number_of(value.value) if is_numpy_scalar(value.value) else value.value
        case SequenceVariable():
            items = [map_variables(item, tensor, symbol) for item in value.items]
            return items if value.kind is list else tuple(items)
        case DictVariable():
            return {key: map_variables(item, tensor, symbol) for key, item in value.items.items()}
        case SliceVariable():
            return slice(*[map_variables(part, tensor, symbol) for part in value.parts])
        case tuple():
            return tuple(map_variables(item, tensor, symbol) for item in value)
        case list():
            return [map_variables(item, tensor, symbol) for item in value]
        case dict():
            return {key: map_variables(item, tensor, symbol) for key, item in value.items()}
        case Variable():
            kind = value.cls if isinstance(value, ObjectVariable) else type(value)
            raise TraceBreakError("GB0009", f"a {kind.__name__} as an argument of a torch call")
    return value
