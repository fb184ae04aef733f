"""Calls of NumPy's functions."""

from __future__ import annotations

import builtins
import types
from typing import Any

import numpy as np

from plait_bytecode_tracer.arrays import creation
from plait_bytecode_tracer.arrays.context import Context
from plait_bytecode_tracer.arrays.filled import FUNCTIONS
from plait_bytecode_tracer.arrays.layout import ordered
from plait_bytecode_tracer.arrays.methods import array_method, array_number
from plait_bytecode_tracer.arrays.ufuncs import array_operator, call_ufunc
from plait_bytecode_tracer.arrays.values import folded, has_array
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.folding import fold, has_tensor
from plait_bytecode_tracer.rules.registry import fits
from plait_bytecode_tracer.values.numpy_objects import is_numpy_constant
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    Known,
    SequenceVariable,
    TensorVariable,
    Variable,
)

_NUMBERS = (int, float, bool, complex)


def call_numpy(
    frame: Frame, real: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable | None:
    """A call of a function of NumPy; None where it is traced as other functions are."""
    name = _name(real)
    context = Context(frame, name)
    given = [args, kwargs]
    rule = FUNCTIONS.get(real)
    if rule is not None:
        if not fits(rule, context, *args, **kwargs):
            context.refuse()
        if any(isinstance(arg, TensorVariable) for arg in args) and real not in _OF_TENSORS:
            context.refuse("a tensor")
        return ordered(context, real, args, kwargs, rule(context, *args, **kwargs))
    if isinstance(real, np.ufunc):
        if has_array(given):
            return call_ufunc(frame, real, args, kwargs)
        if has_tensor(given):
            context.refuse("a tensor")
        found: Variable = folded(frame, real, args, kwargs)
        return found
    if real is np.dtype and not has_array(given):
        described = fold(real, args, kwargs)
        if isinstance(described, Known) and is_numpy_constant(described.value):
            return described
    if isinstance(real, type):
        if creation.is_scalar_class(real) and len(args) == 1 and not kwargs:
            return creation.scalar_of(context, real, args)
        return None
    descriptor = isinstance(real, types.MethodDescriptorType | types.WrapperDescriptorType)
    if descriptor and args and isinstance(args[0], ArrayVariable):
        return array_method(frame, args[0], real.__name__, args[1:], kwargs)
    if isinstance(real, types.FunctionType) and not has_array(given):
        return None
    if isinstance(real, types.FunctionType) and _is_of_classes(real):
        return None
    raise TraceBreakError("GB0015", f"a call of {name}")


_OF_TENSORS = frozenset({np.asarray, np.array})
"""Functions that give arrays for tensors; others give tensors."""


def _is_of_classes(function: types.FunctionType) -> bool:
    """Whether a function of NumPy in Python asks only what a value is."""
    return function in (np.isscalar, np.iterable)


def _name(real: Any) -> str:
    name = getattr(real, "__qualname__", None) or getattr(real, "__name__", type(real).__name__)
    module = getattr(real, "__module__", None)
    return f"{module or 'numpy'}.{name}"


def call_builtin(
    frame: Frame, real: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """A builtin function of arrays."""
    (first, *others) = args
    if real in _NUMBERS and isinstance(first, ArrayVariable) and not others and not kwargs:
        return array_number(frame, real, first)
    if real is builtins.abs and len(args) == 1 and isinstance(first, ArrayVariable):
        import operator

        return array_operator(frame, operator.abs, args)
    if real is pow and len(args) == 2:
        import operator

        return array_operator(frame, operator.pow, args)
    if real is divmod and len(args) == 2:
        return SequenceVariable(
            [call_ufunc(frame, ufunc, args, {}) for ufunc in (np.floor_divide, np.remainder)], tuple
        )
    if real in (str, repr, format, ascii):
        raise TraceBreakError("GB0004", "an array formatted as text")
    raise TraceBreakError("GB0015", f"{getattr(real, '__name__', real)} of an array")


__all__ = ["call_builtin", "call_numpy", "constant"]
