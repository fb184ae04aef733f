"""Operators that cannot take symbolic numbers, or only some."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.shapes.arithmetic import concrete
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    SequenceVariable,
    SymbolVariable,
    TensorVariable,
)

_SIZED_BY_FLOATS = frozenset(
    {
        *("arange", "range", "linspace", "logspace", "interpolate", "upsample"),
        *("upsample_nearest", "upsample_bilinear", "fractional_max_pool2d"),
        *("fractional_max_pool3d", "fractional_max_pool2d_with_indices"),
        *("fractional_max_pool3d_with_indices",),
    }
)
"""Functions whose results have sizes that follow from floats among the arguments."""
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


_IN_PLACE = frozenset(
    getattr(operator, f"i{name}")
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
)


def check_use(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Take the values of floats that decide on sizes; refuse what torch cannot trace.

    A fake tensor is made with the float of this call, so no other may give another size.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name in _SIZED_BY_FLOATS:
        for value in _numbers([*args, *kwargs.values()]):
            if value.kind is float and value.hint is not None:
                concrete(value)
    if name in _RECURRENT and len(args) > 1 and _holds_places(args[1]):
        raise TraceBreakError("GB0008", f"{name} of a packed sequence with symbolic sizes")


def check_result(target: Any, result: object, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """See what torch has made of the floats of this call.

    Where an operator gives an argument back, floats may have decided that: dropout of
    probability 0 is its input itself. A fake tensor that knows its value forgets it.
    """
    given = [*args, *kwargs.values()]
    if any(number.kind is float for number in _numbers(given)):
        for tensor in (result, *(value.fake for value in given if _is_tensor(value))):
            if getattr(tensor, "constant", None) is not None:
                tensor.constant = None
    name = str(getattr(target, "__name__", target))
    if name.endswith("_") or target in _IN_PLACE:
        return
    if any(isinstance(value, TensorVariable) and value.fake is result for value in given):
        for number in _numbers(given):
            if number.kind is float and number.hint is not None:
                concrete(number)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TensorVariable)


def _numbers(values: Sequence[Any]) -> list[SymbolVariable]:
    found: list[SymbolVariable] = []
    for value in values:
        if isinstance(value, SymbolVariable):
            found.append(value)
        elif isinstance(value, SequenceVariable):
            found += _numbers(value.items)
        elif isinstance(value, DictVariable):
            found += _numbers(list(value.items.values()))
    return found


def _holds_places(value: Any) -> bool:
    """Whether it is a tensor of sizes, whose elements torch reads."""
    return isinstance(value, TensorVariable) and value.fake.dtype is torch.int64
