"""Elements of arrays: views, copies, and writes in place."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from plait_bytecode_tracer.arrays.context import Context
from plait_bytecode_tracer.arrays.creation import cast
from plait_bytecode_tracer.arrays.layout import ordered
from plait_bytecode_tracer.arrays.traced import Traced
from plait_bytecode_tracer.arrays.values import constant_array, dtype_of, has_array, torch_dtype
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import set_item
from plait_bytecode_tracer.shapes.attributes import size_of
from plait_bytecode_tracer.values.numpy_objects import is_array
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    IteratorVariable,
    Known,
    Remake,
    SequenceVariable,
    SliceVariable,
    SymbolVariable,
    Variable,
)


def get_array_item(frame: Frame, array: ArrayVariable, key: Variable) -> Variable:
    """`array[key]`."""
    context = Context(frame, "an element of an array")
    if array.is_scalar:
        context.refuse("a scalar")
    parts, is_basic = _key(context, key)
    tensor = context.traced(array)
    found = tensor[parts]
    if not is_basic:
        made = context.result(found, given=[array], scalar=False)
        is_mask = isinstance(parts[0], Traced) and parts[0].dtype is torch.bool and len(parts) == 1
        return ordered(context, operator.getitem, [array, key], {}, made, always=not is_mask)
    if found.dim() == 0 and Ellipsis not in parts:
        return context.result(found.clone(), scalar=True)
    if found.variable is tensor.variable:
        found = tensor.view(tensor.variable.fake.dtype)
    return context.view(found, array, operator.getitem, key)


def set_array_item(frame: Frame, array: ArrayVariable, key: Variable, value: Variable) -> None:
    """`array[key] = value`."""
    context = Context(frame, "an assignment to an element")
    context.require_writable(array)
    parts, _ = _key(context, key)
    dtype = dtype_of(array)
    target = context.traced(array)
    given = _value(context, value, dtype)
    if isinstance(given, Traced) and _overlap(given, target):
        given = given.clone()
    plain = given.variable if isinstance(given, Traced) else constant(given)
    set_item(frame, target.variable, _variable(parts), plain)


def _overlap(one: Traced, other: Traced) -> bool:
    first, second = one.variable.fake, other.variable.fake
    is_input = one.variable.node.op == "placeholder"
    return is_input or first.untyped_storage()._cdata == second.untyped_storage()._cdata


def _variable(parts: tuple[Any, ...]) -> Variable:
    """A key of tensors and constants as a value of the trace."""
    items = [
        part.variable
        if isinstance(part, Traced)
        else part
        if isinstance(part, Variable)
        else constant(part)
        for part in parts
    ]
    return SequenceVariable(items, tuple)


def _value(context: Context, value: Variable, dtype: np.dtype[Any]) -> Any:
    """What is stored, in the type of the array."""
    if isinstance(value, Known) and not is_array(value.value):
        kind = type(value.value)
        if kind not in (bool, int, float) and kind.__module__ != "numpy":
            context.refuse("such a value")
        if not _fits(value.value, dtype):
            context.refuse("a value that does not fit")
        return np.array(value.value).astype(dtype).item()
    if isinstance(value, SymbolVariable) and not (value.kind is float and dtype.kind != "f"):
        return context.t.full((), value, dtype=torch_dtype(dtype), device="cpu")
    array = context.array(value)
    if dtype_of(array) != dtype:
        array = cast(context, array, dtype)
    return context.traced(array)


def _fits(value: Any, dtype: np.dtype[Any]) -> bool:
    """Whether NumPy stores a number without an error or a warning."""
    if dtype.kind in "iu" and not isinstance(value, bool):
        info = np.iinfo(dtype)
        return value == value and bool(info.min <= value <= info.max)
    return dtype.kind == "c" or not isinstance(value, complex)


def _key(context: Context, key: Variable) -> tuple[tuple[Any, ...], bool]:
    """A key for torch, part by part, and whether it gives a view."""
    given = [key]
    if isinstance(key, SequenceVariable) and key.kind is tuple:
        given = list(key.items)
    elif isinstance(key, Known) and type(key.value) is tuple:
        given = [constant(part) for part in key.value]
    found = [_part(context, part) for part in given]
    if sum(part is Ellipsis for part in found) > 1:
        context.refuse("two ellipses")
    return tuple(found), not any(isinstance(part, Traced) for part in found)


def _part(context: Context, part: Variable) -> Any:
    if isinstance(part, ArrayVariable) or has_array(part):
        return _index_array(context, context.array(part))
    if isinstance(part, SequenceVariable) and part.kind is list:
        array: Any = np.asarray(context.constant(part))
        if array.ndim != 1 or array.dtype.kind not in "bi" or not array.size:
            context.refuse("such a list")
        return _index_array(context, constant_array(context.frame, array))
    if isinstance(part, SliceVariable):
        step = context.constant(part.parts[2])
        if step is not None and step < 1:
            context.refuse("a slice that goes backwards")
        return part
    if isinstance(part, SymbolVariable) and part.kind is int:
        return part
    value = context.constant(part)
    if value is None or value is Ellipsis:
        return value
    if isinstance(value, slice):
        if value.step is not None and operator.index(value.step) < 1:
            context.refuse("a slice that goes backwards")
        return value
    if isinstance(value, bool | np.bool_ | str | float):
        context.refuse("such an index")
    return operator.index(value)


def _index_array(context: Context, array: ArrayVariable) -> Traced:
    kind = dtype_of(array).kind
    tensor = context.traced(array)
    if kind not in "bi" or tensor.dim() == 0:
        context.refuse("such an index")
    found: Traced = tensor if kind == "b" else context.traced(array, np.dtype("i8"))
    return found


def array_iterator(frame: Frame, array: ArrayVariable) -> IteratorVariable:
    """`iter(array)`: it asks for one place after the other."""
    context = Context(frame, "iteration over an array")
    tensor = context.traced(array)
    if array.is_scalar or tensor.dim() == 0:
        context.refuse("a scalar")
    size = context.constant(size_of(frame, tensor.variable, 0))
    place = 0

    def step() -> Variable | None:
        nonlocal place
        if place >= size:
            return None
        place += 1
        return get_array_item(frame, array, constant(place - 1))

    def again() -> Remake:
        return Remake(iter, [array], state=place)

    return IteratorVariable(step, type(iter(np.zeros(1))), again)
