"""Functions that arrange elements anew: views, and copies in another order."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from plait_bytecode_tracer.arrays.axes import axes_of
from plait_bytecode_tracer.arrays.context import Context, key_part
from plait_bytecode_tracer.arrays.table import captured
from plait_bytecode_tracer.arrays.traced import Traced
from plait_bytecode_tracer.arrays.ufuncs import operands_of
from plait_bytecode_tracer.arrays.values import dtype_of
from plait_bytecode_tracer.frames.frame import constant
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.folding import has_tensor
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    Known,
    SequenceVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)


def shares_memory(one: Traced, other: Traced) -> bool:
    """Whether a result is a view of an operand."""
    found, given = one.variable.fake, other.variable.fake
    return bool(found.untyped_storage()._cdata == given.untyped_storage()._cdata)


def arranged(
    context: Context, array: ArrayVariable, result: Traced, function: Any, *args: Variable
) -> Variable:
    """What torch makes a view of, which NumPy does too, or a copy."""
    if array.is_scalar:
        context.refuse("a scalar")
    if shares_memory(result, context.traced(array)):
        if result.variable is context.traced(array).variable:
            result = Traced(context.frame, _renamed(context, result))
        return context.view(result, array, function, *args)
    return context.result(result, scalar=False, inner=function is np.reshape)


def _renamed(context: Context, tensor: Traced) -> TensorVariable:
    """The same tensor as a value of its own."""
    return TensorVariable(tensor.variable.node, tensor.variable.fake)


def _sizes(context: Context, value: Variable) -> list[Any]:
    """A shape, of which sizes may be symbolic."""
    items = list(value.items) if isinstance(value, SequenceVariable) else None
    if isinstance(value, Known):
        plain = value.value
        items = [constant(each) for each in plain] if isinstance(plain, tuple | list) else [value]
    if isinstance(value, SymbolVariable):
        items = [value]
    if items is None or has_tensor(items):
        context.refuse("such a shape")
    return [each if isinstance(each, SymbolVariable) else _size(context, each) for each in items]


def _size(context: Context, value: Variable) -> int:
    size = plain_value(value)
    if isinstance(size, bool) or not hasattr(type(size), "__index__"):
        context.refuse("such a shape")
    return operator.index(size)


@captured(np.reshape)
def reshape(
    context: Context, a: Variable, shape: Variable, order: Variable | None = None
) -> Variable:
    array = context.array(a)
    if context.constant(order, "C") != "C":
        context.refuse("another order")
    sizes = _sizes(context, shape)
    return arranged(context, array, context.traced(array).reshape(sizes), np.reshape, shape)


@captured(np.ravel)
def ravel(context: Context, a: Variable, order: Variable | None = None) -> Variable:
    array = context.array(a)
    if context.constant(order, "C") != "C":
        context.refuse("another order")
    tensor = context.traced(array)
    if not tensor.variable.fake.is_contiguous():
        return context.result(tensor.reshape(-1), given=[array], scalar=False)
    return arranged(context, array, tensor.reshape(-1), np.ravel)


@captured(np.transpose)
def transpose(context: Context, a: Variable, axes: Variable | None = None) -> Variable:
    array = context.array(a)
    tensor = context.traced(array)
    wanted = context.constant(axes)
    order = tuple(reversed(range(tensor.dim()))) if wanted is None else _axes(context, wanted)
    return arranged(context, array, tensor.permute(order), np.transpose, constant(order))


def _axes(context: Context, value: Any) -> tuple[int, ...]:
    try:
        return tuple(operator.index(each) for each in value)
    except TypeError:
        context.refuse("such axes")


@captured(np.swapaxes)
def _swapaxes(context: Context, a: Variable, axis1: Variable, axis2: Variable) -> Variable:
    array = context.array(a)
    axes = context.constant(axis1), context.constant(axis2)
    tensor = context.traced(array).transpose(*map(operator.index, axes))
    return arranged(context, array, tensor, np.swapaxes, axis1, axis2)


@captured(np.moveaxis)
def _moveaxis(context: Context, a: Variable, source: Variable, destination: Variable) -> Variable:
    array = context.array(a)
    places = context.constant(source), context.constant(destination)
    tensor = context.t.movedim(context.traced(array), *places)
    return arranged(context, array, tensor, np.moveaxis, source, destination)


@captured(np.expand_dims)
def _expand_dims(context: Context, a: Variable, axis: Variable) -> Variable:
    array = context.array(a)
    place = context.constant(axis)
    if type(place) is not int:
        context.refuse("several axes")
    tensor = context.traced(array).unsqueeze(place)
    return arranged(context, array, tensor, np.expand_dims, axis)


@captured(np.squeeze)
def _squeeze(context: Context, a: Variable, axis: Variable | None = None) -> Variable:
    array = context.array(a)
    tensor = context.traced(array)
    axes = axes_of(context, array, axis)
    ones = [each for each in axes if tensor.variable.fake.shape[each] == 1]
    if context.constant(axis) is not None and len(ones) < len(axes):
        context.refuse("an axis that is not of size 1")
    args = () if axis is None else (axis,)
    return arranged(context, array, tensor.squeeze(tuple(ones)), np.squeeze, *args)


@captured(np.atleast_1d)
def _atleast_1d(context: Context, *arys: Variable) -> Variable:
    if len(arys) != 1:
        context.refuse("several arrays")
    array = context.array(arys[0])
    tensor = context.traced(array)
    if tensor.dim() and not array.is_scalar:
        return array
    if not array.is_scalar:
        return arranged(context, array, tensor.reshape(1), np.reshape, constant(1))
    return context.result(tensor.reshape(1), given=[array], inner=True)


@captured(np.concatenate)
def _concatenate(context: Context, arrays: Variable, axis: Variable | None = None) -> Variable:
    given = _arrays(context, arrays)
    dtype = np.result_type(*map(dtype_of, given))
    place = context.constant(axis, 0)
    if type(place) is not int or any(context.traced(each).dim() == 0 for each in given):
        context.refuse()
    parts = [context.traced(each, dtype) for each in given]
    if len({part.dim() for part in parts}) > 1:  # torch passes over those of size 0
        context.refuse("arrays of several numbers of dimensions")
    return context.result(context.t.cat(parts, place), given=given)


def _arrays(context: Context, value: Variable) -> list[ArrayVariable]:
    if not isinstance(value, SequenceVariable) or not value.items:
        context.refuse("arrays in another container")
    return [context.array(item) for item in value.items]


@captured(np.stack)
def _stack(context: Context, arrays: Variable, axis: Variable | None = None) -> Variable:
    given = _arrays(context, arrays)
    dtype = np.result_type(*map(dtype_of, given))
    parts = [context.traced(each, dtype) for each in given]
    return context.result(context.t.stack(parts, context.constant(axis, 0)))


def _joined(name: str) -> None:
    """`vstack` and its like."""

    def rule(context: Context, tup: Variable) -> Variable:
        given = _arrays(context, tup)
        dtype = np.result_type(*map(dtype_of, given))
        parts = [context.traced(each, dtype) for each in given]
        return context.result(getattr(context.t, name)(parts), given=given)

    captured(getattr(np, name))(rule)


for _name in ("vstack", "hstack", "dstack", "column_stack"):
    _joined(_name)


@captured(np.where)
def _where(
    context: Context, condition: Variable, x: Variable | None = None, y: Variable | None = None
) -> Variable:
    if x is None or y is None:
        context.refuse("one argument, whose result's size depends on data")
    chosen = context.traced(context.array(condition))
    if chosen.dtype is not context.t.bool:
        chosen = chosen != 0
    (left, right), _ = operands_of(context, [x, y])
    return context.result(context.t.where(chosen, left, right), scalar=False)


@captured(np.roll)
def _roll(context: Context, a: Variable, shift: Variable, axis: Variable | None = None) -> Variable:
    array = context.array(a)
    tensor = context.traced(array)
    places = context.constant(axis)
    moved = key_part(shift)
    rolled = tensor.roll(moved) if places is None else tensor.roll(moved, places)
    return context.result(rolled, given=[array], scalar=False, inner=places is None)


@captured(np.tile)
def _tile(context: Context, A: Variable, reps: Variable) -> Variable:  # its name
    array = context.array(A)
    tiled = context.traced(array).tile(_sizes(context, reps))
    return context.result(tiled, given=[array], inner=True)


@captured(np.repeat)
def _repeat(
    context: Context, a: Variable, repeats: Variable, axis: Variable | None = None
) -> Variable:
    array = context.array(a)
    count = context.constant(repeats)
    if type(count) is not int:
        context.refuse("a count for each element")
    place = context.constant(axis)
    tensor = context.traced(array)
    flat = tensor.reshape(-1) if place is None else tensor
    return context.result(flat.repeat_interleave(count, 0 if place is None else place))


def _split(context: Context, ary: Variable, sections: Variable, axis: Variable | None) -> Variable:
    array = context.array(ary)
    place, wanted = context.constant(axis, 0), context.constant(sections)
    tensor = context.traced(array)
    if array.is_scalar or tensor.dim() == 0:
        context.refuse("a scalar")
    size = tensor.variable.fake.shape[place]
    if type(wanted) is int and (not isinstance(size, int) or wanted < 1 or size % wanted):
        context.refuse("parts of several sizes")
    cuts = wanted if type(wanted) is int else [operator.index(each) for each in wanted]
    if isinstance(cuts, list) and (cuts != sorted(cuts) or not all(0 <= c <= size for c in cuts)):
        context.refuse("such places to split at")
    parts = tensor.tensor_split(cuts, place)
    edges = [0, *cuts] if isinstance(cuts, list) else [n * (size // cuts) for n in range(cuts)]
    ends = [*edges[1:], size]
    before = (slice(None),) * (place % tensor.dim())
    made: list[Variable] = [
        context.view(part, array, operator.getitem, constant((*before, slice(start, end))))
        for part, start, end in zip(parts, edges, ends, strict=True)
    ]
    return SequenceVariable(made, list)


@captured(np.split)
def _np_split(
    context: Context, ary: Variable, indices_or_sections: Variable, axis: Variable | None = None
) -> Variable:
    return _split(context, ary, indices_or_sections, axis)


@captured(np.tril)
def _tril(context: Context, m: Variable, k: Variable | None = None) -> Variable:
    return _triangle(context, "tril", m, k)


@captured(np.triu)
def _triu(context: Context, m: Variable, k: Variable | None = None) -> Variable:
    return _triangle(context, "triu", m, k)


def _triangle(context: Context, name: str, m: Variable, k: Variable | None) -> Variable:
    array = context.array(m)
    tensor = context.traced(array)
    if tensor.dim() < 2:
        context.refuse("one dimension")
    return context.result(getattr(tensor, name)(context.constant(k, 0)))


@captured(np.take)
def _take(
    context: Context, a: Variable, indices: Variable, axis: Variable | None = None
) -> Variable:
    array, places = context.array(a), context.array(indices)
    if dtype_of(places).kind != "i":
        context.refuse("such indices")
    tensor, index = context.traced(array), context.traced(places, np.dtype("i8"))
    wanted = context.constant(axis)
    if wanted is None:
        return context.result(tensor.reshape(-1)[index], given=[array])
    if type(wanted) is not int or not -tensor.dim() <= wanted < tensor.dim() or index.dim() == 0:
        context.refuse("such an axis")
    before = (slice(None),) * (wanted % tensor.dim())
    return context.result(tensor[(*before, index)], given=[array])


@captured(np.take_along_axis)
def _take_along_axis(
    context: Context, arr: Variable, indices: Variable, axis: Variable
) -> Variable:
    array, places = context.array(arr), context.array(indices)
    wanted = context.constant(axis)
    if type(wanted) is not int or dtype_of(places).kind != "i":
        context.refuse()
    index = context.traced(places, np.dtype("i8"))
    return context.result(context.t.take_along_dim(context.traced(array), index, wanted))


@captured(np.ndim)
def _ndim(context: Context, a: Variable) -> Variable:
    from plait_bytecode_tracer.arrays.methods import array_attribute

    found = array_attribute(context.frame, context.array(a), "ndim")
    assert found is not None
    return found


@captured(np.shape)
def _shape(context: Context, a: Variable) -> Variable:
    from plait_bytecode_tracer.arrays.methods import array_attribute

    found = array_attribute(context.frame, context.array(a), "shape")
    assert found is not None
    return found


@captured(np.broadcast_to)
def _broadcast_to(context: Context, array: Variable, shape: Variable) -> Variable:
    given = context.array(array)
    if given.is_scalar:
        context.refuse("a scalar")
    found = context.traced(given).expand(_sizes(context, shape))
    made = context.view(found, given, np.broadcast_to, shape)
    made.is_readonly = True
    return made


def _split_along(name: str, axis: int) -> None:
    """`vsplit` and its like."""

    def rule(context: Context, ary: Variable, indices_or_sections: Variable) -> Variable:
        array = context.array(ary)
        count = context.traced(array).dim()
        if count < 2:
            context.refuse("one dimension")
        return _split(context, array, indices_or_sections, constant(axis))

    captured(getattr(np, name))(rule)


_split_along("vsplit", 0)
_split_along("hsplit", 1)


@captured(np.meshgrid)
def _meshgrid(context: Context, *xi: Variable, indexing: Variable | None = None) -> Variable:
    order = context.constant(indexing, "xy")
    parts = [context.traced(context.array(each)) for each in xi]
    if order not in ("xy", "ij") or not parts or any(part.dim() != 1 for part in parts):
        context.refuse("such arrays")
    grids = context.t.meshgrid(parts, indexing=order)
    made: list[Variable] = [context.result(grid.contiguous().clone()) for grid in grids]
    return SequenceVariable(made, tuple)


@captured(np.nonzero)
def _nonzero(context: Context, a: Variable) -> Variable:
    array = context.array(a)
    tensor = context.traced(array)
    if tensor.dim() == 0:
        context.refuse("a scalar")
    return SequenceVariable(_places(context, tensor), tuple)


def _places(context: Context, tensor: Traced) -> list[Variable]:
    """Where a tensor is not zero, axis by axis: columns of one array."""
    found = tensor.nonzero()
    whole = context.result(found)
    return [
        context.view(found.select(1, axis), whole, operator.getitem, constant((slice(None), axis)))
        for axis in range(tensor.dim())
    ]


@captured(np.flatnonzero)
def _flatnonzero(context: Context, a: Variable) -> Variable:
    flat = context.traced(context.array(a)).reshape(-1)
    return _places(context, flat)[0]


@captured(np.real)
def _real(context: Context, val: Variable) -> Variable:
    return _part(context, val, "real")


@captured(np.imag)
def _imag(context: Context, val: Variable) -> Variable:
    return _part(context, val, "imag")


def _part(context: Context, val: Variable, name: str) -> Variable:
    from plait_bytecode_tracer.arrays.methods import array_attribute

    found = array_attribute(context.frame, context.array(val), name)
    assert found is not None
    return found


@captured(np.isclose)
def _isclose(
    context: Context,
    a: Variable,
    b: Variable,
    rtol: Variable | None = None,
    atol: Variable | None = None,
    equal_nan: Variable | None = None,
) -> Variable:
    given, dtype = operands_of(context, [context.array(a), context.array(b)])
    if dtype.kind != "f" or dtype == np.float16:
        context.refuse("such elements")
    within = context.constant(rtol, 1e-5), context.constant(atol, 1e-8)
    left, right = context.t.broadcast_tensors(*given)
    found = context.t.isclose(left, right, *within, bool(context.constant(equal_nan, False)))
    return context.result(found, inner=True)
