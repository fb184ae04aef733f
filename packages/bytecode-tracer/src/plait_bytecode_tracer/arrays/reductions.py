"""Reductions: sums, extremes, quantifiers, moments, and those that leave out NaN."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from plait_bytecode_tracer.arrays.context import Context
from plait_bytecode_tracer.arrays.reducing import Reduction, added, dtype_of_sum, reduces
from plait_bytecode_tracer.arrays.table import captured
from plait_bytecode_tracer.arrays.ufuncs import call_ufunc
from plait_bytecode_tracer.arrays.values import dtype_of
from plait_bytecode_tracer.values.variables import Variable


def _accumulated(call: Reduction, name: str) -> Variable:
    found = dtype_of_sum(call)
    axes, keep = call.axes, call.keeps
    tensor = call.context.traced(call.array, found)
    if not axes:
        result = tensor.clone()
    elif name == "sum":
        result = tensor.sum(axes, keepdim=keep)
    else:
        result = tensor
        for each in sorted(axes, reverse=True):
            result = result.prod(each, keepdim=keep)
    return call.finished(result, found)


@reduces(np.mean, takes="axis dtype out keepdims")
@reduces(np.average, takes="axis * keepdims")
def _mean(call: Reduction) -> Variable:
    own, wanted = dtype_of(call.array), call.wanted
    found = wanted if wanted is not None else own if own.kind in "fc" else np.dtype("f8")
    computed = np.dtype("f4") if own == np.float16 and wanted is None else found
    if computed.kind not in "fc":
        call.context.refuse("a mean of integers")
    axes, keep = call.axes, call.keeps
    tensor = call.context.traced(call.array, computed)
    if any(size == 0 for size in tensor.variable.fake.shape):
        call.context.refuse("an empty array, of which it warns")
    result = tensor.mean(axes, keepdim=keep) if axes else tensor.clone()
    return call.finished(result, found)


def _spread(call: Reduction, name: str) -> Variable:
    context, own = call.context, dtype_of(call.array)
    correction = context.constant(call.ddof, 0)
    axes, keep = call.axes, call.keeps
    if call.wanted is not None or own.kind == "c":
        context.refuse()
    found = own if own.kind == "f" else np.dtype("f8")
    tensor = context.traced(call.array, np.dtype("f4") if own == np.float16 else found)
    count = 1
    for each in axes:
        count *= tensor.variable.fake.shape[each]
    if not axes or count <= correction:
        context.refuse("too few elements, of which it warns")
    result = getattr(tensor, name)(axes, correction=correction, keepdim=keep)
    return call.finished(result, found)


def _extreme(call: Reduction, name: str) -> Variable:
    if dtype_of(call.array).kind == "c":
        call.context.refuse("complex numbers")
    axes, keep = call.axes, call.keeps
    tensor = call.context.traced(call.array)
    return call.finished(getattr(tensor, name)(axes, keepdim=keep) if axes else tensor.clone())


@reduces(np.ptp, takes="axis * keepdims")
def _range(call: Reduction) -> Variable:
    if dtype_of(call.array).kind == "b":
        call.context.refuse("bools")
    high, low = _extreme(call, "amax"), _extreme(call, "amin")
    return call_ufunc(call.context.frame, np.subtract, [high, low], {})


def _quantified(call: Reduction, name: str) -> Variable:
    axes, keep = call.axes, call.keeps
    tensor = call.context.traced(call.array)
    if tensor.dtype is not torch.bool:
        tensor = tensor != 0
    for each in sorted(axes, reverse=True):
        tensor = getattr(tensor, name)(each, keepdim=keep)
    return call.finished(tensor)


_SUMS: tuple[tuple[Any, str], ...] = ((np.sum, "sum"), (np.prod, "prod"))
for _function, _name in _SUMS:
    reduces(_function, takes="axis dtype out keepdims")(partial(_accumulated, name=_name))
_SPREADS: tuple[tuple[Any, str], ...] = ((np.var, "var"), (np.std, "std"))
for _function, _name in _SPREADS:
    reduces(_function, takes="axis dtype out ddof keepdims")(partial(_spread, name=_name))
reduces(np.max, np.amax, takes="axis out keepdims")(partial(_extreme, name="amax"))
reduces(np.min, np.amin, takes="axis out keepdims")(partial(_extreme, name="amin"))
_QUANTIFIERS: tuple[tuple[Any, str], ...] = ((np.all, "all"), (np.any, "any"))
for _function, _name in _QUANTIFIERS:
    reduces(_function, takes="axis out keepdims")(partial(_quantified, name=_name))


@captured(np.count_nonzero)
def _count_nonzero(context: Context, a: Variable, axis: Variable | None = None) -> Variable:
    call = Reduction(context, context.array(a), axis)
    if context.constant(axis) is None:
        context.refuse("all axes, which gives an int of Python's")
    axes = call.axes
    return context.result((context.traced(call.array) != 0).sum(axes))


@captured(np.trace)
def _trace(context: Context, a: Variable) -> Variable:
    array = context.array(a)
    found = added(dtype_of(array))
    tensor = context.traced(array, found)
    if tensor.dim() != 2:
        context.refuse("other than two dimensions")
    return context.result(tensor.diagonal().sum())


def _without_nan(call: Reduction, name: str, filler: float) -> Variable:
    context, own = call.context, dtype_of(call.array)
    if own.kind != "f" or own == np.float16:
        context.refuse("such elements")
    tensor = context.traced(call.array)
    filled = context.result(context.t.where(context.t.isnan(tensor), filler, tensor))
    return _accumulated(Reduction(context, filled, call.axis, keepdims=call.keepdims), name)


_FILLED: tuple[tuple[Any, str, float], ...] = ((np.nansum, "sum", 0.0), (np.nanprod, "prod", 1.0))
for _function, _name, _filler in _FILLED:
    reduces(_function, takes="axis * keepdims")(partial(_without_nan, name=_name, filler=_filler))


@reduces(np.nanmean, takes="axis * keepdims")
def _nanmean(call: Reduction) -> Variable:
    context, own = call.context, dtype_of(call.array)
    if own.kind != "f" or own == np.float16:
        context.refuse("such elements")
    axes, keep = call.axes, call.keeps
    tensor = context.traced(call.array)
    is_nan = context.t.isnan(tensor)
    total = context.t.where(is_nan, 0.0, tensor).sum(axes, keepdim=keep)
    return context.result(total / is_nan.logical_not().sum(axes, keepdim=keep))
