"""Gradients of slices and selects: zeros around what was taken, and between it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten


def slice_backward(
    grad: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> object:
    dim %= len(sizes)
    size = sizes[dim]
    if type(start) is not int or type(step) is not int or grad.is_complex():
        return NotImplemented
    if step == 1 and surely_equal([size], [grad.shape[dim]]):
        return grad.clone(memory_format=torch.contiguous_format)
    first = _from_the_front(start, size)
    return _among_zeros(grad if step == 1 else _spread(grad, dim, step), dim, size, first)


def select_backward(grad: Tensor, sizes: Sequence[int], dim: int, index: int) -> object:
    dim %= len(sizes)
    if type(index) is not int or grad.is_complex():
        return NotImplemented
    size = sizes[dim]
    return _among_zeros(grad.unsqueeze(dim), dim, size, _from_the_front(index, size))


def _from_the_front(start: int, size: int) -> int:
    """A place that may be counted from the end, within the dimension if its size is known."""
    start = start + size if start < 0 else start
    return min(max(start, 0), size) if type(size) is int else start


def _spread(taken: Tensor, dim: int, step: int) -> Tensor:
    """Each element of a dimension with `step - 1` zeros behind it."""
    wide = _padded(taken.unsqueeze(dim + 1), dim + 1, 0, step - 1)
    return wide.flatten(dim, dim + 1)


def _among_zeros(taken: Tensor, dim: int, size: int, before: int) -> Tensor:
    return _padded(taken, dim, before, size - before - taken.shape[dim])


def _padded(x: Tensor, dim: int, before: int, behind: int) -> Tensor:
    """With dense strides, whatever those of `x`; what lies behind is cut off below 0."""
    x = x.clone(memory_format=torch.contiguous_format)
    return torch.constant_pad_nd(x, [*[0, 0] * (x.dim() - 1 - dim), before, behind], 0)


TABLE: dict[OpOverload, Rule] = {
    aten.slice_backward.default: slice_backward,
    aten.select_backward.default: select_backward,
}
"""Gradients of views, by their operators."""
