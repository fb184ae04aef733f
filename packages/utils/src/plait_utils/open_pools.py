"""Pooling that keeps symbolic sizes of the input, of which torch's kernels want numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """`torch.nn.functional.adaptive_max_pool2d`."""
    return _pooled(input, output_size, 2, with_places=return_indices)


def adaptive_max_pool2d_with_indices(
    input: Tensor, output_size: Any, return_indices: bool = False
) -> Any:
    return _pooled(input, output_size, 2, with_places=True)


def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """`torch.nn.functional.adaptive_max_pool3d`."""
    return _pooled(input, output_size, 3, with_places=return_indices)


def adaptive_max_pool3d_with_indices(
    input: Tensor, output_size: Any, return_indices: bool = False
) -> Any:
    return _pooled(input, output_size, 3, with_places=True)


def _pooled(input: Tensor, output_size: Any, rank: int, *, with_places: bool) -> Any:
    """Elements along a dimension that is kept as it is are as many images."""
    if not isinstance(output_size, list | tuple) or len(output_size) != rank:
        return NotImplemented
    if input.dim() not in (rank + 1, rank + 2) or not input.is_contiguous():
        return NotImplemented  # the result has the order of channels that the input has
    kept = [
        wanted is None or _is(wanted, extent)
        for wanted, extent in zip(output_size, input.shape[-rank:], strict=True)
    ]
    sizes = [wanted for keeps, wanted in zip(kept, output_size, strict=True) if not keeps]
    if not any(kept) or not all(isinstance(each, int) for each in sizes):
        return NotImplemented
    return _of_kept(input, kept, sizes, with_places=with_places)


def _is(wanted: Any, extent: Any) -> bool:
    both = isinstance(wanted, torch.SymInt) and isinstance(extent, torch.SymInt)
    return both and bool(wanted.node.expr == extent.node.expr)


def _of_kept(x: Tensor, kept: Sequence[bool], sizes: list[int], *, with_places: bool) -> Any:
    lead = x.dim() - len(kept)
    front = [*range(lead), *[lead + axis for axis, keeps in enumerate(kept) if keeps]]
    behind = [lead + axis for axis, keeps in enumerate(kept) if not keeps]
    order = [*front, *behind]
    back = [order.index(axis) for axis in range(x.dim())]
    moved = x.permute(order)
    flat = moved.reshape([-1, 1, *[1] * (2 - len(behind)), *[x.shape[axis] for axis in behind]])
    if behind:
        windows = [*[1] * (2 - len(behind)), *sizes]
        found, places = torch.nn.functional.adaptive_max_pool2d(flat, windows, return_indices=True)
    else:
        found, places = flat, torch.zeros_like(flat, dtype=torch.int64)
    shape = [*[x.shape[axis] for axis in front], *sizes]
    found = found.reshape(shape).permute(back).clone(memory_format=torch.contiguous_format)
    if not with_places:
        return found
    places = places.reshape(shape).permute(back)
    return found, _within(x, places, kept)


def _within(x: Tensor, places: Tensor, kept: Sequence[bool]) -> Tensor:
    """Places among all elements of an image, of those among the dimensions that are not kept."""
    lead = x.dim() - len(kept)
    total = torch.zeros_like(places, memory_format=torch.contiguous_format)
    step: Any = 1
    for axis in reversed(range(len(kept))):
        extent = x.shape[lead + axis]
        if kept[axis]:
            along = torch.arange(extent, device=x.device)
            along = along.reshape([-1, *[1] * (len(kept) - 1 - axis)])
        else:
            along = places % extent
            places = places // extent
        total = total + along * step
        step = step * extent
    return total
