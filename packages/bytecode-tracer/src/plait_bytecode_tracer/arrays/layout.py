"""In which order NumPy puts the elements of a result into memory: NumPy itself tells."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from plait_bytecode_tracer.arrays.context import Context
from plait_bytecode_tracer.arrays.traced import Traced
from plait_bytecode_tracer.arrays.values import is_from_outside, known_array
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.values.numpy_objects import is_array
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    DictVariable,
    Known,
    SequenceVariable,
    SliceVariable,
    TensorVariable,
    Variable,
)

_IN_C_ORDER = frozenset({np.linalg.inv, np.linalg.solve})
"""Functions whose results lie in C order whatever they are given."""


def ordered(
    context: Context,
    function: Callable[..., Any],
    args: Sequence[Variable],
    kwargs: dict[str, Variable],
    result: Variable,
    *,
    always: bool = False,
    elementwise: bool = False,
) -> Variable:
    """What a function made anew, with its elements in NumPy's order.

    Where all arrays that it is given lie in C order, so does it, unless `always` is said; where
    they all lie in another, so does what an `elementwise` function gives.
    """
    if function in _IN_C_ORDER or not _is_new(result, [*args, *kwargs.values()]):
        return result
    assert isinstance(result, ArrayVariable)
    assert result.tensor is not None
    given = [array.tensor for array in _arrays([*args, *kwargs.values()]) if array.tensor]
    orders = {_order_of(each.fake) for each in given if each.fake.dim() > 1}
    own = _order_of(result.tensor.fake)
    in_order = orders <= {tuple(range(len(order))) for order in orders}
    if not always and (in_order or (elementwise and orders == {own})):
        return result
    order, is_inner = _order(context, function, args, kwargs)
    result.is_inner = is_inner if always else result.is_inner
    found = Traced(context.frame, result.tensor)
    if order != own:
        back = tuple(order.index(axis) for axis in range(len(order)))
        found = found.permute(order).contiguous().permute(back)
    result.tensor = found.variable
    return result


def _is_new(result: Variable, given: Sequence[Variable]) -> bool:
    """Whether a function has made an array with an order to choose."""
    if not isinstance(result, ArrayVariable) or is_from_outside(result):
        return False
    if result.is_scalar or result.again is not None or any(each is result for each in given):
        return False
    return result.tensor is not None and result.tensor.fake.dim() > 1


def _arrays(values: Any) -> list[ArrayVariable]:
    found = []
    for value in values:
        if isinstance(value, ArrayVariable):
            found.append(value)
        elif isinstance(value, SequenceVariable):
            found += _arrays(value.items)
    return found


def _order_of(fake: torch.Tensor) -> tuple[int, ...]:
    """The order of a tensor's axes; it is guarded where sizes are symbolic."""
    return _axes(fake.stride(), tuple(fake.shape))


def _axes(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The axes from the outermost in memory to the innermost; those of one element last."""
    return tuple(
        sorted(range(len(shape)), key=lambda axis: -strides[axis] if shape[axis] > 1 else 0)
    )


def _order(
    context: Context, function: Any, args: Sequence[Variable], kwargs: dict[str, Variable]
) -> tuple[tuple[int, ...], bool]:
    """The order of the axes in what NumPy makes of like arrays; whether it is a view of its own."""
    given = [_stand_in(context, arg) for arg in args]
    named = {name: _stand_in(context, value) for name, value in kwargs.items()}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            made = function(*given, **named)
    except Exception as error:
        context.refuse(f"arrays in another order ({error})")
    return _axes(made.strides, made.shape), made.base is not None


def _hints(context: Context, values: Sequence[int | torch.SymInt]) -> list[int]:
    """Sizes or strides as they are in the call that is traced."""
    found: list[Any] = [v.node.hint if isinstance(v, torch.SymInt) else v for v in values]
    if None in found:
        context.refuse("an order that depends on data")
    return found


def _stand_in(context: Context, value: Variable) -> Any:
    """A value like a tracked one: arrays of ones of the same shape, type and order."""
    if isinstance(value, Known) and is_array(value.value):
        value = known_array(context.frame, value)
    match value:
        case ArrayVariable(tensor=TensorVariable(fake=fake)):
            sizes, strides = _hints(context, fake.shape), _hints(context, fake.stride())
            made: Any = torch.empty_strided(sizes, strides, dtype=fake.dtype).fill_(1).numpy()
            if made.dtype.kind == "i" and fake.dtype is not torch.bool:
                made[...] = 0  # they may be indices
            return made[()] if value.is_scalar else made
        case ArrayVariable():
            return value.original
        case SequenceVariable(items, kind) if kind in (list, tuple):
            return kind([_stand_in(context, item) for item in items])
        case SliceVariable(parts):
            return slice(*[_stand_in(context, part) for part in parts])
        case DictVariable():
            context.refuse("a dict")
    return plain_value(value)
