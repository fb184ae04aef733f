"""Sums of `torch.Size` with symbolic elements."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import constant
from plait_bytecode_tracer.values.variables import Known, SequenceVariable, SymbolVariable, Variable


def add_sizes(function: Callable[..., Any], args: list[Variable]) -> Variable | None:
    """The sum of tuples of ints, of which one is a size that is tracked; None without such.

    Breaks for all else that is done with a size but comparing it.
    """
    from plait_bytecode_tracer.objects.comparison import COMPARISONS

    if not any(isinstance(a, SequenceVariable) and a.kind is torch.Size for a in args):
        return None
    if function in COMPARISONS:
        return None
    sides = [_ints(arg) for arg in args]
    adds = function in (operator.add, operator.iadd) and len(args) == 2
    if not adds or sides[0] is None or sides[1] is None:
        raise TraceBreakError("GB0008", f"{function.__name__} of a size")
    kinds = [a.kind if isinstance(a, SequenceVariable) else type(_value(a)) for a in args]
    samples: list[Any] = [kind((1,)) for kind in kinds]
    return SequenceVariable([*sides[0], *sides[1]], type(samples[0] + samples[1]))


def _value(value: Variable) -> Any:
    return value.value if isinstance(value, Known) else None


def _ints(value: Variable) -> list[Variable] | None:
    """The elements of a tuple of ints."""
    items: list[Variable]
    if isinstance(value, SequenceVariable) and value.kind in (tuple, torch.Size):
        items = list(value.items)
    elif type(_value(value)) in (tuple, torch.Size):
        items = [constant(item) for item in _value(value)]
    else:
        return None
    return items if all(map(_is_int, items)) else None


def _is_int(value: Variable) -> bool:
    if isinstance(value, SymbolVariable):
        return value.kind is int
    return type(_value(value)) is int
