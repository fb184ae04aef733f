"""`torch.gradient` of tensors whose sizes may be symbolic, as torch makes it of differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def gradient(
    input: Tensor,
    *,
    spacing: Any = None,
    dim: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> Any:
    """Central differences, and differences of one side at the ends.

    `spacing` is a number, or for each dimension a number or the coordinates along it.
    """
    spacing = 1 if spacing is None else spacing
    dims = [dim] if isinstance(dim, int) else list(range(input.dim()) if dim is None else dim)
    steps = list(spacing) if isinstance(spacing, (list, tuple)) else [spacing] * len(dims)
    if isinstance(spacing, Tensor) or not _is_fit(input, steps, dims, edge_order):
        return NotImplemented
    return tuple(
        _along(input, step, at % input.dim(), edge_order)
        for step, at in zip(steps, dims, strict=True)
    )


def _is_fit(x: Tensor, steps: Sequence[Any], dims: Sequence[int], edge_order: int) -> bool:
    if len(steps) != len(dims) or edge_order not in (1, 2):
        return False
    if not all(-x.dim() <= at < x.dim() for at in dims):
        return False
    if len({at % x.dim() for at in dims}) < len(dims):
        return False
    for step, at in zip(steps, dims, strict=True):
        if isinstance(step, Tensor):
            if step.dim() != 1 or step.shape[0] != x.shape[at] or step.device != x.device:
                return False
        elif not isinstance(step, int | float | complex):
            return False
    return all(x.shape[at] > edge_order for at in dims)


def _along(x: Tensor, step: Any, dim: int, edge_order: int) -> Tensor:
    parts = _uneven if isinstance(step, Tensor) else _even
    return torch.cat(parts(x, step, dim, edge_order), dim)


def _part(x: Tensor, dim: int, start: int, end: int | None) -> Tensor:
    place: list[Any] = [slice(None)] * x.dim()
    place[dim] = slice(start, end)
    return x[tuple(place)]


def _even(x: Tensor, step: Any, dim: int, edge_order: int) -> list[Tensor]:
    """The first difference, those between and the last one, where elements are `step` apart."""
    between = (_part(x, dim, 2, None) - _part(x, dim, 0, -2)) / step
    if edge_order == 1:
        first = (_part(x, dim, 1, 2) - _part(x, dim, 0, 1)) / step
        last = (_part(x, dim, -1, None) - _part(x, dim, -2, -1)) / step
    else:
        ends = [_part(x, dim, at, at + 1) for at in range(3)]
        first = (-1.5 * ends[0] + 2 * ends[1] - 0.5 * ends[2]) / step
        ends = [_part(x, dim, at, at + 1 or None) for at in (-3, -2, -1)]
        last = (0.5 * ends[0] - 2 * ends[1] + 1.5 * ends[2]) / step
    return [first, between / 2, last]


def _uneven(x: Tensor, places: Tensor, dim: int, edge_order: int) -> list[Tensor]:
    """The same where elements lie at `places`."""
    steps = places.diff()
    shape = [-1 if at == dim else 1 for at in range(x.dim())]
    one, two = steps[:-1], steps[1:]
    a = (-two / (one * (one + two))).reshape(shape)
    b = ((two - one) / (one * two)).reshape(shape)
    c = (one / (two * (one + two))).reshape(shape)
    between = a * _part(x, dim, 0, -2) + b * _part(x, dim, 1, -1) + c * _part(x, dim, 2, None)
    if edge_order == 1:
        first = (_part(x, dim, 1, 2) - _part(x, dim, 0, 1)) / steps[0]
        last = (_part(x, dim, -1, None) - _part(x, dim, -2, -1)) / steps[-1]
        return [first, between, last]
    one, two = steps[0], steps[1]
    a = -(2.0 * one + two) / (one * (one + two))
    b = (one + two) / (one * two)
    c = -one / (two * (one + two))
    first = a * _part(x, dim, 0, 1) + b * _part(x, dim, 1, 2) + c * _part(x, dim, 2, 3)
    one, two = steps[-2], steps[-1]
    a = two / (one * (two + one))
    b = -(two + one) / (two * one)
    c = (2 * two + one) / (two * (two + one))
    last = a * _part(x, dim, -3, -2) + b * _part(x, dim, -2, -1) + c * _part(x, dim, -1, None)
    return [first, between, last]
