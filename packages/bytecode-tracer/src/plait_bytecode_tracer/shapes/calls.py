"""Calls with symbolic numbers among the arguments."""

from __future__ import annotations

import functools
import math
import types
from typing import Any

import torch

from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.folding import FOLDED
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.shapes.arithmetic import (
    METHODS,
    call_symbolic,
    concrete,
    extreme,
    is_symbolic,
    product,
    sequence_text,
)
from plait_bytecode_tracer.shapes.data import check
from plait_bytecode_tracer.values.variables import (
    Known,
    SequenceVariable,
    SliceVariable,
    SymbolVariable,
    Variable,
)


def call_with_numbers(
    frame: Frame, real: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable | None:
    """A builtin function of symbolic numbers; None where the call goes its usual way."""
    if real is torch.Size and len(args) == 1 and not isinstance(args[0], SymbolVariable):
        items = list(elements(frame, args[0]))
        return SequenceVariable(items, torch.Size) if is_symbolic(items) else None
    if real is torch._check and args and not kwargs:
        return check(frame, args)
    if args and isinstance(args[0], SequenceVariable):
        found = _of_sequence(real, args[0], args[1:], kwargs)
        if found is not None:
            return found
    if not is_symbolic(args) and not is_symbolic(kwargs.values()):
        return None
    if real is slice and not kwargs:
        return _slice(args)
    if real in (min, max) and len(args) > 1 and not kwargs:
        return extreme(real, args)
    found = call_symbolic(real, args, kwargs) if _is_plain(real) else None
    if found is not None or not _takes_values(real):
        return found
    named = {name: concrete(value) for name, value in kwargs.items()}
    return frame.call(constant(real), [concrete(arg) for arg in args], named)


def _of_sequence(
    real: Any, sequence: SequenceVariable, rest: list[Variable], kwargs: dict[str, Variable]
) -> Variable | None:
    """A builtin function of a tuple or list of which an element is symbolic."""
    if real in (min, max) and len(sequence.items) > 1 and is_symbolic(sequence.items):
        return None if rest or kwargs else extreme(real, list(sequence.items))
    if real is math.prod and not rest and kwargs.keys() <= {"start"}:
        return product([kwargs.get("start", constant(1)), *sequence.items])
    is_plain = all(isinstance(each, Known) and each.value == "" for each in rest)
    if real in (str, repr, format) and len(rest) <= (real is format) and is_plain and not kwargs:
        return sequence_text(list(sequence.items), sequence.kind)
    return None


def _takes_values(real: Any) -> bool:
    """Whether a function is one of constants, which is called while tracing."""
    if isinstance(real, functools._lru_cache_wrapper):
        return True
    if not _is_plain(real):
        return False
    is_operator = getattr(real, "__module__", "") in ("_operator", "operator")
    return (real in FOLDED or real in METHODS) and not is_operator


def _is_plain(real: Any) -> bool:
    """Whether a callable is a class or function in C, and so can be looked up."""
    kinds = types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType
    return isinstance(real, type | kinds)


def _slice(args: list[Variable]) -> Variable:
    none = constant(None)
    if len(args) == 1:
        return SliceVariable([none, args[0], none])
    return SliceVariable([*args, *[none] * (3 - len(args))])
