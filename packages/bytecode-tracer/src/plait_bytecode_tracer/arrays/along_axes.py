"""What goes along an axis: places of extremes, running sums, differences, orders."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from plait_bytecode_tracer.arrays.axes import along, axes_of
from plait_bytecode_tracer.arrays.context import Context
from plait_bytecode_tracer.arrays.reducing import Reduction, dtype_of_sum, reduces
from plait_bytecode_tracer.arrays.table import captured
from plait_bytecode_tracer.arrays.values import dtype_of
from plait_bytecode_tracer.frames.frame import constant
from plait_bytecode_tracer.values.variables import Variable


def _place(call: Reduction, name: str) -> Variable:
    context, array = call.context, call.array
    if dtype_of(array).kind == "c":
        context.refuse("complex numbers")
    tensor = context.traced(array)
    if tensor.dtype is torch.bool:
        tensor = tensor.to(torch.uint8)
    keep, wanted = call.keeps, context.constant(call.axis)
    if wanted is not None:
        (place,) = axes_of(context, array, constant(wanted))
        return context.result(getattr(tensor, name)(place, keepdim=keep))
    if keep:
        context.refuse("keepdims of all axes")
    return context.result(getattr(tensor.reshape(-1), name)(0))


def _running(call: Reduction, name: str) -> Variable:
    found = dtype_of_sum(call)
    tensor, place = along(call.context, call.array, call.axis, found)
    return call.finished(getattr(tensor, name)(place), found)


_PLACES: tuple[tuple[Any, str], ...] = ((np.argmax, "argmax"), (np.argmin, "argmin"))
for _function, _name in _PLACES:
    reduces(_function, takes="axis * keepdims")(partial(_place, name=_name))
_RUNNING: tuple[tuple[Any, str], ...] = ((np.cumsum, "cumsum"), (np.cumprod, "cumprod"))
for _function, _name in _RUNNING:
    reduces(_function, takes="axis dtype out")(partial(_running, name=_name))


@captured(np.diff)
def _diff(
    context: Context, a: Variable, n: Variable | None = None, axis: Variable | None = None
) -> Variable:
    array = context.array(a)
    (place,) = axes_of(context, array, axis or constant(-1))
    times = context.constant(n, 1)
    if times < 1 or dtype_of(array).kind == "c":
        context.refuse()
    return context.result(context.traced(array).diff(times, place))


@captured(np.sort)
def _sort(context: Context, a: Variable, axis: Variable | None = None) -> Variable:
    array = context.array(a)
    if dtype_of(array).kind == "c":
        context.refuse("complex numbers")
    tensor, place = along(context, array, constant(-1) if axis is None else axis, None)
    return context.result(tensor.sort(place)[0], scalar=False)


@captured(np.argsort)
def _argsort(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    kind: Variable | None = None,
    *,
    stable: Variable | None = None,
) -> Variable:
    array = context.array(a)
    is_stable = context.constant(kind) in ("stable", "mergesort") or context.constant(stable)
    if not is_stable or dtype_of(array).kind == "c":
        context.refuse("an order of equal elements that is not said")
    tensor, place = along(context, array, constant(-1) if axis is None else axis, None)
    return context.result(tensor.sort(dim=place, stable=True)[1], scalar=False)


@captured(np.searchsorted)
def _searchsorted(
    context: Context, a: Variable, v: Variable, side: Variable | None = None
) -> Variable:
    array, values = context.array(a), context.array(v)
    dtype = np.result_type(dtype_of(array), dtype_of(values))
    is_right = context.constant(side, "left") == "right"
    if dtype.kind not in "iuf" or context.traced(array).dim() != 1:
        context.refuse()
    row, wanted = (context.traced(each, dtype).contiguous() for each in (array, values))
    if dtype.kind != "f":
        return context.result(context.t.searchsorted(row, wanted, right=is_right))
    infinity, t = float("inf"), context.t  # NaN come last in NumPy's order
    valid = t.isnan(row).logical_not().sum()
    found = t.searchsorted(
        *(t.where(t.isnan(row), infinity, row), t.where(t.isnan(wanted), infinity, wanted)),
        right=is_right,
    )
    last = t.full_like(valid, row.variable.fake.shape[0]) if is_right else valid
    return context.result(t.where(t.isnan(wanted), last, t.minimum(found, valid)))


@captured(np.median)
def _median(context: Context, a: Variable, axis: Variable | None = None) -> Variable:
    array = context.array(a)
    own = dtype_of(array)
    if own.kind not in "iuf" or own == np.float16:
        context.refuse("such elements")
    tensor, place = along(context, array, axis, own if own.kind == "f" else np.dtype("f8"))
    size = tensor.variable.fake.shape[place]
    if not isinstance(size, int) or size == 0:
        context.refuse("a size that changes, or is 0")
    ordered = tensor.sort(place)[0]
    low, high = (ordered.select(place, each) for each in ((size - 1) // 2, size // 2))
    last = ordered.select(place, size - 1)
    middle = low if size % 2 else (low + high) / 2
    return context.result(context.t.where(context.t.isnan(last), last, middle))
