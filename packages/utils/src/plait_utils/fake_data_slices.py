"""Fake results of operators at places that depend on data, where torch's own have sizes unknown.

What a program commonly means is assumed, as a condition of torch's environment: that a place lies
in the tensor, and that `x[-n:]` counts from its end.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from plait_utils.data_sizes import data_symbols, formula


def part(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    """`slice` from or to a place that depends on data, or of as many elements: its size is a
    formula of the places."""
    if type(step) is not int or step < 1 or not x.dim():
        return NotImplemented
    if not data_symbols([start, end]):
        return _part_of_open(x, dim, start, end, step)
    axis, size = dim % x.dim(), x.shape[dim]
    first = 0 if start is None else _place(start, size)
    last = size if end is None or _is_endless(end) else _place(end, size)
    if first is None or last is None:
        return NotImplemented
    _assume(first <= last)
    length = last - first if step == 1 else (last - first + step - 1) // step
    sizes, steps = list(x.shape), list(x.stride())
    offset = x.storage_offset() + first * steps[axis]
    sizes[axis], steps[axis] = length, steps[axis] * step
    return x.as_strided(sizes, steps, offset)


def _part_of_open(x: Tensor, dim: int, start: Any, end: Any, step: int) -> Any:
    """`x[1:]` of a number of elements that depends on data, of which torch 2.11's own rule gives
    another number, of which nothing is known."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    axis, size = dim % x.dim(), x.shape[dim]
    places = [0 if start is None else start, sys.maxsize if end is None else end]
    if not data_symbols([size]) or any(type(each) is not int for each in places):
        return NotImplemented
    first, last = (_clipped(each, size) for each in places)
    if guard_or_false(last >= first) or guard_or_false(first >= last):
        return NotImplemented
    sizes, steps = list(x.shape), list(x.stride())
    offset = x.storage_offset() + first * steps[axis]
    length = torch.sym_max(last - first, 0)  # type: ignore[no-untyped-call]  # torch's
    sizes[axis] = (length + step - 1) // step
    steps[axis] *= step
    return x.as_strided(sizes, steps, offset)


def _clipped(place: int, size: Any) -> Any:
    if place < 0:
        return torch.sym_max(place + size, 0)  # type: ignore[no-untyped-call]  # torch's
    if _is_endless(place):
        return size
    return torch.sym_min(place, size)  # type: ignore[no-untyped-call]  # torch's


def padded(x: Tensor, pad: Sequence[Any], value: Any = 0) -> Any:
    """`constant_pad_nd` by numbers that depend on data, none of which takes elements away."""
    if not data_symbols(list(pad)) or len(pad) % 2 or len(pad) > 2 * x.dim():
        return NotImplemented
    sizes = list(x.shape)
    for place, count in enumerate(pad):
        _assume(count >= 0)
        sizes[-1 - place // 2] += count
    return x.new_empty(sizes).contiguous(memory_format=suggest_memory_format(x))


def element(x: Tensor, dim: int, index: Any) -> Any:
    """`select`, whose own rule before torch 2.13 does not look if a place lies in the tensor."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    if not x.dim():
        return NotImplemented
    size = x.size(dim)
    if guard_or_false(index >= size) or guard_or_false(index < -size):
        raise IndexError(
            f"select(): index {index} out of range for tensor of size "
            f"{list(x.size())} at dimension {dim % x.dim()}"
        )
    return NotImplemented


def copied(x: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    """`copy_`, which before torch 2.13 asks sizes that depend on data whether they are 1."""
    if not data_symbols([x, source]):
        return NotImplemented
    source.expand(x.shape)
    return x


def _place(place: Any, size: Any) -> Any:
    """A place as it counts from the beginning; None where that is not known."""
    if type(place) is int and type(size) is int:
        return max(place + size, 0) if place < 0 else min(place, size)
    if type(place) is int and place != 0:
        return None
    if type(place) is not int and _is_from_the_end(formula(place)):
        _assume(place < 0)
        place = place + size
    _assume(place >= 0)
    _assume(place <= size)
    return place


def _is_from_the_end(expression: Any) -> bool:
    """Whether a place is some number with a minus, and not `-(-n // 2)`, which rounds up."""
    factor, rest = expression.as_coeff_Mul()
    return bool(factor < 0 and not any(each.as_coeff_Mul()[0] < 0 for each in rest.args))


def _is_endless(end: Any) -> bool:
    return type(end) is int and end == sys.maxsize


def _assume(condition: Any) -> None:
    torch._check(condition)  # type: ignore[no-untyped-call]  # torch's
