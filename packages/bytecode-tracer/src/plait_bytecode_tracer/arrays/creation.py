"""Functions that make arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from plait_bytecode_tracer.arrays.context import Context
from plait_bytecode_tracer.arrays.conversions import array_of_tensor
from plait_bytecode_tracer.arrays.shaping import _sizes
from plait_bytecode_tracer.arrays.table import captured
from plait_bytecode_tracer.arrays.values import (
    dtype_of,
    folded,
    has_array,
    require_handling,
    torch_dtype,
)
from plait_bytecode_tracer.frames.frame import constant
from plait_bytecode_tracer.objects.folding import has_tensor
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    SequenceVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)


def _shape(context: Context, value: Variable) -> Sequence[Any]:
    return _sizes(context, value)


def _dtype(context: Context, dtype: Variable | None, default: Any) -> np.dtype[Any]:
    given = context.constant(dtype)
    found: np.dtype[Any] = np.dtype(default if given is None else given)
    return found


def _filled(
    context: Context, value: Any, shape: Sequence[Any], dtype: np.dtype[Any]
) -> ArrayVariable:
    require_handling(context.frame.state)
    found = torch_dtype(dtype)
    made = context.t.full(list(shape), value, dtype=found, device="cpu")
    return context.result(made, scalar=False)


@captured(np.zeros)
def _zeros(context: Context, shape: Variable, dtype: Variable | None = None) -> Variable:
    found = _dtype(context, dtype, float)
    return _filled(context, _number(found, 0), _shape(context, shape), found)


@captured(np.ones)
def _ones(context: Context, shape: Variable, dtype: Variable | None = None) -> Variable:
    found = _dtype(context, dtype, float)
    return _filled(context, _number(found, 1), _shape(context, shape), found)


def _number(dtype: np.dtype[Any], value: Any) -> Any:
    """A number of Python's that a type holds."""
    torch_dtype(dtype)
    return np.asarray(value).astype(dtype).item()


@captured(np.empty)
def _empty(context: Context, shape: Variable, dtype: Variable | None = None) -> Variable:
    return _zeros(context, shape, dtype)  # what it holds is left open


@captured(np.empty_like)
def _empty_like(context: Context, prototype: Variable, dtype: Variable | None = None) -> Variable:
    return _like(context, prototype, 0, dtype)


@captured(np.full)
def _full(
    context: Context, shape: Variable, fill_value: Variable, dtype: Variable | None = None
) -> Variable:
    value = context.constant(fill_value)
    if not np.isscalar(value):
        context.refuse("such a value")
    found = _dtype(context, dtype, np.asarray(value).dtype)
    return _filled(context, _number(found, value), _shape(context, shape), found)


def _like(context: Context, a: Variable, value: Any, dtype: Variable | None) -> Variable:
    array = context.array(a)
    tensor = context.traced(array)
    if array.is_scalar:
        context.refuse("a scalar")
    found = _dtype(context, dtype, dtype_of(array))
    made = context.t.full_like(tensor, _number(found, value), dtype=torch_dtype(found))
    return context.result(made, scalar=False)


@captured(np.zeros_like)
def _zeros_like(context: Context, a: Variable, dtype: Variable | None = None) -> Variable:
    return _like(context, a, 0, dtype)


@captured(np.ones_like)
def _ones_like(context: Context, a: Variable, dtype: Variable | None = None) -> Variable:
    return _like(context, a, 1, dtype)


@captured(np.full_like)
def _full_like(
    context: Context, a: Variable, fill_value: Variable, dtype: Variable | None = None
) -> Variable:
    value = context.constant(fill_value)
    if not np.isscalar(value):
        context.refuse("such a value")
    return _like(context, a, value, dtype)


@captured(np.arange)
def _arange(
    context: Context,
    start: Variable,
    stop: Variable | None = None,
    step: Variable | None = None,
    dtype: Variable | None = None,
) -> Variable:
    if isinstance(start, SymbolVariable) and stop is None and start.kind is int:
        found = _dtype(context, dtype, int)
        if found.kind != "i":
            context.refuse("such a type")
        require_handling(context.frame.state)
        made = context.t.arange(start, dtype=torch_dtype(found), device="cpu")
        return context.result(made, scalar=False)
    given = [each for each in (start, stop, step) if each is not None]
    return _constant(context, np.arange, given, {} if dtype is None else {"dtype": dtype})


def _constant(
    context: Context, function: Any, args: Sequence[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """What a function makes of constants."""
    if has_tensor([*args, *kwargs.values()]) or has_array([*args, *kwargs.values()]):
        context.refuse("an array there")
    made: Variable = folded(context.frame, function, list(args), kwargs)
    return made


@captured(np.linspace)
def _linspace(
    context: Context,
    start: Variable,
    stop: Variable,
    num: Variable | None = None,
    endpoint: Variable | None = None,
    *,
    dtype: Variable | None = None,
) -> Variable:
    given = {"num": num, "endpoint": endpoint, "dtype": dtype}
    named = {name: value for name, value in given.items() if value is not None}
    found = _constant(context, np.linspace, [start, stop], named)
    if isinstance(found, ArrayVariable):
        found.is_inner = True
    return found


@captured(np.eye)
def _eye(
    context: Context,
    N: Variable,  # its name
    M: Variable | None = None,
    k: Variable | None = None,
    dtype: Variable | None = None,
) -> Variable:
    given = {"M": M, "k": k, "dtype": dtype}
    named = {name: value for name, value in given.items() if value is not None}
    return _constant(context, np.eye, [N], named)


@captured(np.identity)
def _identity(context: Context, n: Variable, dtype: Variable | None = None) -> Variable:
    return _constant(context, np.identity, [n], {} if dtype is None else {"dtype": dtype})


def _array(context: Context, value: Variable, dtype: Variable | None, *, copies: bool) -> Variable:
    wanted = context.constant(dtype)
    if isinstance(value, TensorVariable):
        value = array_of_tensor(context.frame, value)
        if wanted is not None and np.dtype(wanted) != dtype_of(value):
            return cast(context, value, wanted)
        if not copies:
            return value
    made = context.array(value)
    is_new = not isinstance(value, ArrayVariable) and not has_array([value])
    found = dtype_of(made) if wanted is None else np.dtype(wanted)
    if made is value and not made.is_scalar and not copies and found == dtype_of(made):
        return made
    if isinstance(value, SequenceVariable) or is_new:
        if isinstance(value, SequenceVariable) and wanted is not None and is_new:
            return _constant(context, np.array, [value], {"dtype": constant(wanted)})
        tensor = context.traced(made, found)
        return context.result(tensor, scalar=False)
    return cast(context, made, found, scalar=False)


def cast(
    context: Context, array: ArrayVariable, dtype: Any, *, scalar: bool | None = None
) -> ArrayVariable:
    """`array.astype(dtype)`: a copy."""
    own, found = dtype_of(array), np.dtype(dtype)
    torch_dtype(found)
    if own.kind == "f" and found.kind in "iu" and found.itemsize < 4:
        context.refuse("floats as small integers, which they may not fit")
    if own.kind == "c" and found.kind != "c":
        context.refuse("complex numbers as others")
    tensor = context.traced(array, found)
    is_scalar = array.is_scalar if scalar is None else scalar
    return context.result(tensor, given=[array], scalar=is_scalar)


@captured(np.array)
def _np_array(
    context: Context,
    object: Variable,  # its name
    dtype: Variable | None = None,
    *,
    copy: Variable | None = None,
) -> Variable:
    copies = context.constant(copy, True)
    if copies is not True:
        context.refuse("copy=False")
    return _array(context, object, dtype, copies=True)


@captured(np.asarray)
def _asarray(context: Context, a: Variable, dtype: Variable | None = None) -> Variable:
    return _array(context, a, dtype, copies=False)


@captured(np.ascontiguousarray)
def _ascontiguousarray(context: Context, a: Variable, dtype: Variable | None = None) -> Variable:
    array = context.array(a)
    tensor = context.traced(array)
    if tensor.dim() == 0 or not tensor.variable.fake.is_contiguous():
        context.refuse("an array in another order")
    return _array(context, array, dtype, copies=False)


@captured(np.copy)
def _copy(context: Context, a: Variable) -> Variable:
    array = context.array(a)
    return context.result(context.traced(array), given=[array], scalar=False)


def is_scalar_class(value: Any) -> bool:
    """Whether a class is one of NumPy's scalars."""
    return isinstance(value, type) and issubclass(value, np.generic)


def scalar_of(context: Context, cls: Any, args: Sequence[Variable]) -> Variable:
    """`numpy.float32(x)` and its like."""
    (value,) = args
    if not has_array(value):
        found: Variable = folded(context.frame, cls, list(args), {})
        return found
    array = context.array(value)
    if context.traced(array).dim() != 0:
        context.refuse("an array")
    return cast(context, array, cls, scalar=True)
