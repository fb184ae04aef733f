"""Reductions, and what goes along an axis."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from plait_bytecode_tracer.arrays.context import Context
from plait_bytecode_tracer.arrays.table import captured
from plait_bytecode_tracer.arrays.traced import Traced
from plait_bytecode_tracer.arrays.ufuncs import call_ufunc
from plait_bytecode_tracer.arrays.values import dtype_of, torch_dtype
from plait_bytecode_tracer.frames.frame import constant
from plait_bytecode_tracer.values.variables import ArrayVariable, Known, Variable


def axes_of(context: Context, array: ArrayVariable, axis: Variable | None) -> tuple[int, ...]:
    """The axes that are reduced, none of them negative."""
    count = context.traced(array).dim()
    wanted = context.constant(axis)
    if wanted is None:
        return tuple(range(count))
    given = wanted if isinstance(wanted, tuple) else (wanted,)
    if not all(type(each) is int or isinstance(each, np.integer) for each in given):
        context.refuse("such an axis")
    found = tuple(operator.index(each) for each in given)
    if any(not -count <= each < count for each in found):
        context.refuse("an axis that is not there")
    placed = tuple(each % count for each in found)
    if len(set(placed)) < len(placed):
        context.refuse("an axis twice")
    return placed


def _is_empty(tensor: Traced) -> bool:
    return any(size == 0 for size in tensor.variable.fake.shape)


def _finished(
    context: Context, result: Traced, out: Variable | None, dtype: Any, array: ArrayVariable
) -> Variable:
    if dtype is not None and result.dtype is not torch_dtype(dtype):
        result = result.to(torch_dtype(dtype))
    if out is not None and not (isinstance(out, Known) and out.value is None):
        return context.store(context.array(out), result)
    return context.result(result, given=[array])


def _added(found: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which NumPy adds or multiplies elements of a type."""
    return np.add.reduce(np.zeros(0, found)).dtype if found.kind in "biu" else found


@captured(np.sum)
def _sum(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    dtype: Variable | None = None,
    out: Variable | None = None,
    keepdims: Variable | None = None,
) -> Variable:
    return _accumulated(context, "sum", a, axis, dtype, out, keepdims)


@captured(np.prod)
def _prod(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    dtype: Variable | None = None,
    out: Variable | None = None,
    keepdims: Variable | None = None,
) -> Variable:
    return _accumulated(context, "prod", a, axis, dtype, out, keepdims)


def _accumulated(
    context: Context,
    name: str,
    a: Variable,
    axis: Variable | None,
    dtype: Variable | None,
    out: Variable | None,
    keepdims: Variable | None,
) -> Variable:
    array = context.array(a)
    given = context.constant(dtype)
    found = _added(dtype_of(array)) if given is None else np.dtype(given)
    axes, keep = axes_of(context, array, axis), bool(context.constant(keepdims, False))
    tensor = context.traced(array, found)
    if found.kind == "b":
        context.refuse("bools to be added")
    if not axes:
        result = tensor.clone()
    elif name == "sum":
        result = tensor.sum(axes, keepdim=keep)
    else:
        result = tensor
        for each in sorted(axes, reverse=True):
            result = result.prod(each, keepdim=keep)
    return _finished(context, result, out, found, array)


@captured(np.mean)
def _mean(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    dtype: Variable | None = None,
    out: Variable | None = None,
    keepdims: Variable | None = None,
) -> Variable:
    array = context.array(a)
    given, own = context.constant(dtype), dtype_of(array)
    found = np.dtype(given) if given is not None else own if own.kind in "fc" else np.dtype("f8")
    computed = np.dtype("f4") if own == np.float16 and given is None else found
    if computed.kind not in "fc":
        context.refuse("a mean of integers")
    axes, keep = axes_of(context, array, axis), bool(context.constant(keepdims, False))
    tensor = context.traced(array, computed)
    if _is_empty(tensor):
        context.refuse("an empty array, of which it warns")
    result = tensor.mean(axes, keepdim=keep) if axes else tensor.clone()
    return _finished(context, result, out, found, array)


def _spread(
    context: Context,
    name: str,
    a: Variable,
    axis: Variable | None,
    dtype: Variable | None,
    out: Variable | None,
    ddof: Variable | None,
    keepdims: Variable | None,
) -> Variable:
    array = context.array(a)
    own, correction = dtype_of(array), context.constant(ddof, 0)
    axes, keep = axes_of(context, array, axis), bool(context.constant(keepdims, False))
    if context.constant(dtype) is not None or own.kind == "c":
        context.refuse()
    found = own if own.kind == "f" else np.dtype("f8")
    tensor = context.traced(array, np.dtype("f4") if own == np.float16 else found)
    count = 1
    for each in axes:
        count *= tensor.variable.fake.shape[each]
    if not axes or count <= correction:
        context.refuse("too few elements, of which it warns")
    result = getattr(tensor, name)(axes, correction=correction, keepdim=keep)
    return _finished(context, result, out, found, array)


@captured(np.var)
def _var(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    dtype: Variable | None = None,
    out: Variable | None = None,
    ddof: Variable | None = None,
    keepdims: Variable | None = None,
) -> Variable:
    return _spread(context, "var", a, axis, dtype, out, ddof, keepdims)


@captured(np.std)
def _std(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    dtype: Variable | None = None,
    out: Variable | None = None,
    ddof: Variable | None = None,
    keepdims: Variable | None = None,
) -> Variable:
    return _spread(context, "std", a, axis, dtype, out, ddof, keepdims)


def _extreme(
    context: Context,
    name: str,
    a: Variable,
    axis: Variable | None,
    out: Variable | None,
    keepdims: Variable | None,
) -> Variable:
    array = context.array(a)
    if dtype_of(array).kind == "c":
        context.refuse("complex numbers")
    axes, keep = axes_of(context, array, axis), bool(context.constant(keepdims, False))
    tensor = context.traced(array)
    result = getattr(tensor, name)(axes, keepdim=keep) if axes else tensor.clone()
    return _finished(context, result, out, None, array)


@captured(np.max, np.amax)
def _max(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    out: Variable | None = None,
    keepdims: Variable | None = None,
) -> Variable:
    return _extreme(context, "amax", a, axis, out, keepdims)


@captured(np.min, np.amin)
def _min(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    out: Variable | None = None,
    keepdims: Variable | None = None,
) -> Variable:
    return _extreme(context, "amin", a, axis, out, keepdims)


@captured(np.ptp)
def _ptp(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    *,
    keepdims: Variable | None = None,
) -> Variable:
    array = context.array(a)
    if dtype_of(array).kind == "b":
        context.refuse("bools")
    high, low = (_extreme(context, name, array, axis, None, keepdims) for name in ("amax", "amin"))
    return call_ufunc(context.frame, np.subtract, [high, low], {})


@captured(np.average)
def _average(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    *,
    keepdims: Variable | None = None,
) -> Variable:
    return _mean(context, a, axis, keepdims=keepdims)


def _quantified(
    context: Context,
    name: str,
    a: Variable,
    axis: Variable | None,
    out: Variable | None,
    keepdims: Variable | None,
) -> Variable:
    array = context.array(a)
    axes, keep = axes_of(context, array, axis), bool(context.constant(keepdims, False))
    tensor = context.traced(array)
    if tensor.dtype is not torch.bool:
        tensor = tensor != 0
    for each in sorted(axes, reverse=True):
        tensor = getattr(tensor, name)(each, keepdim=keep)
    return _finished(context, tensor, out, None, array)


@captured(np.all)
def _all(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    out: Variable | None = None,
    keepdims: Variable | None = None,
) -> Variable:
    return _quantified(context, "all", a, axis, out, keepdims)


@captured(np.any)
def _any(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    out: Variable | None = None,
    keepdims: Variable | None = None,
) -> Variable:
    return _quantified(context, "any", a, axis, out, keepdims)


def _place(
    context: Context, name: str, a: Variable, axis: Variable | None, keepdims: Variable | None
) -> Variable:
    array = context.array(a)
    if dtype_of(array).kind == "c":
        context.refuse("complex numbers")
    tensor = context.traced(array)
    if tensor.dtype is torch.bool:
        tensor = tensor.to(torch.uint8)
    keep, wanted = bool(context.constant(keepdims, False)), context.constant(axis)
    if wanted is not None:
        (place,) = axes_of(context, array, constant(wanted))
        return context.result(getattr(tensor, name)(place, keepdim=keep))
    if keep:
        context.refuse("keepdims of all axes")
    return context.result(getattr(tensor.reshape(-1), name)(0))


@captured(np.argmax)
def _argmax(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    *,
    keepdims: Variable | None = None,
) -> Variable:
    return _place(context, "argmax", a, axis, keepdims)


@captured(np.argmin)
def _argmin(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    *,
    keepdims: Variable | None = None,
) -> Variable:
    return _place(context, "argmin", a, axis, keepdims)


def _along(
    context: Context, array: ArrayVariable, axis: Variable | None, dtype: np.dtype[Any] | None
) -> tuple[Traced, int]:
    """A tensor and its axis; all elements in a row without one."""
    tensor = context.traced(array, dtype)
    wanted = context.constant(axis)
    if wanted is None:
        return tensor.reshape(-1), 0
    (place,) = axes_of(context, array, constant(operator.index(wanted)))
    return tensor, place


def _running(
    context: Context,
    name: str,
    a: Variable,
    axis: Variable | None,
    dtype: Variable | None,
    out: Variable | None,
) -> Variable:
    array = context.array(a)
    given = context.constant(dtype)
    found = _added(dtype_of(array)) if given is None else np.dtype(given)
    if found.kind == "b":
        context.refuse("bools to be added")
    tensor, place = _along(context, array, axis, found)
    return _finished(context, getattr(tensor, name)(place), out, found, array)


@captured(np.cumsum)
def _cumsum(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    dtype: Variable | None = None,
    out: Variable | None = None,
) -> Variable:
    return _running(context, "cumsum", a, axis, dtype, out)


@captured(np.cumprod)
def _cumprod(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    dtype: Variable | None = None,
    out: Variable | None = None,
) -> Variable:
    return _running(context, "cumprod", a, axis, dtype, out)


@captured(np.count_nonzero)
def _count_nonzero(context: Context, a: Variable, axis: Variable | None = None) -> Variable:
    array = context.array(a)
    if context.constant(axis) is None:
        context.refuse("all axes, which gives an int of Python's")
    axes = axes_of(context, array, axis)
    return context.result((context.traced(array) != 0).sum(axes))


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
    tensor, place = _along(context, array, constant(-1) if axis is None else axis, None)
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
    tensor, place = _along(context, array, constant(-1) if axis is None else axis, None)
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


@captured(np.trace)
def _trace(context: Context, a: Variable) -> Variable:
    array = context.array(a)
    found = _added(dtype_of(array))
    tensor = context.traced(array, found)
    if tensor.dim() != 2:
        context.refuse("other than two dimensions")
    return context.result(tensor.diagonal().sum())


@captured(np.median)
def _median(context: Context, a: Variable, axis: Variable | None = None) -> Variable:
    array = context.array(a)
    own = dtype_of(array)
    if own.kind not in "iuf" or own == np.float16:
        context.refuse("such elements")
    tensor, place = _along(context, array, axis, own if own.kind == "f" else np.dtype("f8"))
    size = tensor.variable.fake.shape[place]
    if not isinstance(size, int) or size == 0:
        context.refuse("a size that changes, or is 0")
    ordered = tensor.sort(place)[0]
    low, high = (ordered.select(place, each) for each in ((size - 1) // 2, size // 2))
    last = ordered.select(place, size - 1)
    middle = low if size % 2 else (low + high) / 2
    return context.result(context.t.where(context.t.isnan(last), last, middle))


def _without_nan(name: str, filler: float) -> None:
    def rule(
        context: Context,
        a: Variable,
        axis: Variable | None = None,
        *,
        keepdims: Variable | None = None,
    ) -> Variable:
        array = context.array(a)
        own = dtype_of(array)
        if own.kind != "f" or own == np.float16:
            context.refuse("such elements")
        tensor = context.traced(array)
        filled = context.t.where(context.t.isnan(tensor), filler, tensor)
        whole = context.result(filled)
        inner = _sum if name == "sum" else _prod
        return inner(context, whole, axis, keepdims=keepdims)

    captured(getattr(np, f"nan{name}"))(rule)


_without_nan("sum", 0.0)
_without_nan("prod", 1.0)


@captured(np.nanmean)
def _nanmean(
    context: Context,
    a: Variable,
    axis: Variable | None = None,
    *,
    keepdims: Variable | None = None,
) -> Variable:
    array = context.array(a)
    if dtype_of(array).kind != "f" or dtype_of(array) == np.float16:
        context.refuse("such elements")
    axes, keep = axes_of(context, array, axis), bool(context.constant(keepdims, False))
    tensor = context.traced(array)
    is_nan = context.t.isnan(tensor)
    total = context.t.where(is_nan, 0.0, tensor).sum(axes, keepdim=keep)
    return context.result(total / is_nan.logical_not().sum(axes, keepdim=keep))
