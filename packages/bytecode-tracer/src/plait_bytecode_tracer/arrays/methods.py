"""Attributes and methods of arrays and of NumPy's scalars."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plait_bytecode_tracer.arrays.context import Context
from plait_bytecode_tracer.arrays.conversions import read_array
from plait_bytecode_tracer.arrays.creation import cast
from plait_bytecode_tracer.arrays.filled import FUNCTIONS
from plait_bytecode_tracer.arrays.indexing import array_iterator, get_array_item, set_array_item
from plait_bytecode_tracer.arrays.layout import ordered
from plait_bytecode_tracer.arrays.shaping import arranged
from plait_bytecode_tracer.arrays.ufuncs import METHODS, array_operator, call_ufunc, operands_of
from plait_bytecode_tracer.arrays.values import class_of_array, dtype_of
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.operations import apply
from plait_bytecode_tracer.rules.objects import len_
from plait_bytecode_tracer.rules.registry import fits
from plait_bytecode_tracer.shapes.attributes import shape_of
from plait_bytecode_tracer.values.lookup import is_defined
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    Known,
    MethodVariable,
    SequenceVariable,
    Variable,
)


def array_attribute(frame: Frame, array: ArrayVariable, name: str) -> Variable | None:
    """`array.name`; None where there is none."""
    context = Context(frame, f"the attribute {name!r} of an array")
    cls = class_of_array(array)
    rule = _ATTRIBUTES.get(name)
    if name == "__class__":
        return constant(cls)
    if not is_defined(cls, name):
        return None
    if name == "dtype":
        context.traced(array)
        return constant(dtype_of(array))
    if rule is not None:
        return rule(context, array)
    if not callable(getattr(cls, name)):
        context.refuse("no rule")
    return MethodVariable(array, name)


def _shape(context: Context, array: ArrayVariable) -> Variable:
    found = shape_of(context.frame, context.traced(array).variable)
    if isinstance(found, SequenceVariable):
        return SequenceVariable(list(found.items), tuple)
    assert isinstance(found, Known)
    return constant(tuple(found.value))


def _size(context: Context, array: ArrayVariable) -> Variable:
    shape = _shape(context, array)
    items = shape.items if isinstance(shape, SequenceVariable) else ()
    if not items:
        return constant(int(np.prod(getattr(shape, "value", ()), dtype=np.int64)))
    total: Variable = constant(1)
    for item in items:
        total = apply(context.frame, operator.mul, [total, item])
    return total


def _transposed(context: Context, array: ArrayVariable) -> Variable:
    tensor = context.traced(array)
    found = tensor.permute(tuple(reversed(range(tensor.dim()))))
    return arranged(context, array, found, np.transpose)


def _part(name: str) -> Callable[[Context, ArrayVariable], Variable]:
    def read(context: Context, array: ArrayVariable) -> Variable:
        """The real or imaginary part; of real numbers the array itself."""
        if array.is_scalar:
            context.refuse("a scalar")
        tensor = context.traced(array)
        if dtype_of(array).kind != "c":
            if name == "real":
                return array
            context.refuse("real numbers")
        found = getattr(context.t, name)(tensor)
        return context.view(found, array, getattr, constant(name))

    return read


_ATTRIBUTES: dict[str, Callable[[Context, ArrayVariable], Variable]] = {
    "shape": _shape,
    "ndim": lambda context, array: constant(context.traced(array).dim()),
    "size": _size,
    "itemsize": lambda context, array: constant(dtype_of(array).itemsize),
    "T": _transposed,
    "real": _part("real"),
    "imag": _part("imag"),
}


# Methods.


def array_method(
    frame: Frame,
    array: ArrayVariable,
    name: str,
    args: Sequence[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    """`array.name(*args, **kwargs)`."""
    context = Context(frame, f"{class_of_array(array).__name__}.{name}()")
    if name in METHODS and not kwargs:
        function, swapped = METHODS[name]
        operands = [*args, array] if swapped else [array, *args]
        return array_operator(frame, function, operands)
    rule: Callable[..., Variable] | None = _METHODS.get(name)
    if rule is None and name in _FUNCTIONS:
        rule = FUNCTIONS[getattr(np, name)]
    if rule is None or not fits(rule, context, array, *args, **kwargs):
        context.refuse()
    found = rule(context, array, *args, **kwargs)
    return ordered(context, getattr(np.ndarray, name), [array, *args], kwargs, found)


_FUNCTIONS = frozenset(
    {
        *("all", "any", "argmax", "argmin", "argsort", "cumprod", "cumsum", "dot", "max", "mean"),
        *("min", "prod", "ravel", "repeat", "searchsorted", "squeeze", "std", "sum", "swapaxes"),
        *("take", "trace", "var"),
    }
)
"""Methods that do what the function of the name does."""


def _reshape(
    context: Context, array: ArrayVariable, *shape: Variable, order: Variable | None = None
) -> Variable:
    given = shape[0] if len(shape) == 1 else SequenceVariable(list(shape), tuple)
    return FUNCTIONS[np.reshape](context, array, given, order)


def _transpose(context: Context, array: ArrayVariable, *axes: Variable) -> Variable:
    given = axes[0] if len(axes) == 1 else SequenceVariable(list(axes), tuple)
    if isinstance(given, Known) and type(given.value) is int:
        given = SequenceVariable([given], tuple)
    return FUNCTIONS[np.transpose](context, array, given if axes else None)


def _flatten(context: Context, array: ArrayVariable) -> Variable:
    return context.result(context.traced(array).reshape(-1), given=[array], scalar=False)


def _copy(context: Context, array: ArrayVariable) -> Variable:
    tensor = context.traced(array)
    if not tensor.variable.fake.is_contiguous():
        tensor = tensor.contiguous()
    return context.result(tensor, given=[array], scalar=array.is_scalar)


def _copied(context: Context, array: ArrayVariable) -> Variable:
    """What `copy.copy` makes: in the order in which the array lies."""
    return context.result(context.traced(array).clone(), scalar=array.is_scalar)


def _astype(
    context: Context, array: ArrayVariable, dtype: Variable, *, copy: Variable | None = None
) -> Variable:
    wanted = context.constant(dtype)
    if copy is not None and not context.constant(copy) and np.dtype(wanted) == dtype_of(array):
        return array
    return cast(context, array, wanted)


def _clip(
    context: Context,
    array: ArrayVariable,
    min: Variable | None = None,  # their names
    max: Variable | None = None,
) -> Variable:
    return clip(context, array, min, max)


def clip(
    context: Context, a: Variable, a_min: Variable | None = None, a_max: Variable | None = None
) -> Variable:
    """`numpy.clip`."""
    found: Variable = context.array(a)
    bounds = [(np.maximum, a_min), (np.minimum, a_max)]
    used = [
        (ufunc, bound)
        for ufunc, bound in bounds
        if bound is not None and not (isinstance(bound, Known) and bound.value is None)
    ]
    if not used:
        context.refuse("no bounds")
    types = _clipped_type(context, found, [bound for _, bound in used])
    for ufunc, bound in used:
        found = call_ufunc(context.frame, ufunc, [found, bound], {})
    assert isinstance(found, ArrayVariable)
    if dtype_of(found) != types:
        context.refuse("bounds of other types")
    return found


def _clipped_type(context: Context, array: Variable, bounds: Sequence[Variable]) -> np.dtype[Any]:
    return operands_of(context, [array, *bounds])[1]


FUNCTIONS[np.clip] = clip


def _round(context: Context, array: Variable, decimals: Variable | None = None) -> Variable:
    found, places = context.array(array), context.constant(decimals, 0)
    own = dtype_of(found)
    if own.kind not in "fiu" or type(places) is not int or (own.kind != "f" and places < 0):
        context.refuse("such decimals")
    if own.kind != "f":
        return _copy(context, found)
    if places == 0:
        return call_ufunc(context.frame, np.rint, [found], {})
    factor = constant(10.0 ** abs(places))
    larger, smaller = (np.multiply, np.divide) if places > 0 else (np.divide, np.multiply)
    scaled = call_ufunc(context.frame, larger, [found, factor], {})
    rounded = call_ufunc(context.frame, np.rint, [scaled], {})
    return call_ufunc(context.frame, smaller, [rounded, factor], {})


def _np_round(context: Context, a: Variable, decimals: Variable | None = None) -> Variable:
    return _round(context, a, decimals)


FUNCTIONS[np.round] = FUNCTIONS[np.around] = _np_round


def _fill(context: Context, array: ArrayVariable, value: Variable) -> Variable:
    if not has_dimensions(context, array):
        context.refuse("a scalar")
    set_array_item(context.frame, array, constant(Ellipsis), value)
    return constant(None)


def has_dimensions(context: Context, array: ArrayVariable) -> bool:
    """Whether it is an array with at least one axis."""
    return not array.is_scalar and context.traced(array).dim() > 0


def _get(context: Context, array: ArrayVariable, key: Variable) -> Variable:
    return get_array_item(context.frame, array, key)


def _set(context: Context, array: ArrayVariable, key: Variable, value: Variable) -> Variable:
    set_array_item(context.frame, array, key, value)
    return constant(None)


def _length(context: Context, array: ArrayVariable) -> Variable:
    if not has_dimensions(context, array):
        context.refuse("a scalar")
    return len_(context.frame, context.traced(array).variable)


def _iterate(context: Context, array: ArrayVariable) -> Variable:
    return array_iterator(context.frame, array)


def _reads(name: str) -> Callable[..., Variable]:
    def rule(context: Context, array: ArrayVariable) -> Variable:
        found: Variable = read_array(context.frame, array, name)
        return found

    return rule


def _sort(context: Context, array: ArrayVariable, axis: Variable | None = None) -> Variable:
    """`array.sort()`, in place."""
    found = FUNCTIONS[np.sort](context, array, axis)
    context.store(array, context.traced(found))
    return constant(None)


def _conjugate(context: Context, array: ArrayVariable) -> Variable:
    if dtype_of(array).kind != "c":
        if array.is_scalar:
            context.refuse("a scalar")
        return array
    return call_ufunc(context.frame, np.conjugate, [array], {})


_METHODS: dict[str, Callable[..., Variable]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "flatten": _flatten,
    "copy": _copy,
    "astype": _astype,
    "clip": _clip,
    "round": _round,
    "fill": _fill,
    "sort": _sort,
    "item": _reads("item"),
    "tolist": _reads("tolist"),
    "conj": _conjugate,
    "conjugate": _conjugate,
    "__copy__": _copied,
    "__getitem__": _get,
    "__setitem__": _set,
    "__len__": _length,
    "__iter__": _iterate,
}


def array_number(frame: Frame, function: Any, array: ArrayVariable) -> Variable:
    """`int`, `float`, `bool` or `complex` of an array of one element."""
    context = Context(frame, f"{function.__name__}() of an array")
    tensor = context.traced(array)
    if tensor.dim() != 0:  # NumPy warns of it, or refuses
        context.refuse("dimensions")
    try:
        return frame.call(constant(function), [tensor.variable], {})
    except TraceBreakError as error:
        if error.kind.code != "GB0004":
            raise
        raise TraceBreakError("GB0004", f"{function.__name__}() of an array") from error
