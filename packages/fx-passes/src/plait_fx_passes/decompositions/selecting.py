"""Operators that choose elements by masks and positions, in terms of `index` and `scatter`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten


def _inside(x: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Indices that are moved to the nearest that there is."""
    sizes = x.shape
    return [
        None if index is None else index.clamp(-sizes[axis], sizes[axis] - 1)
        for axis, index in enumerate(indices)
    ]


def _fits(x: Tensor, mask: Tensor, indices: Sequence[Tensor | None]) -> bool:
    kinds = {index.dtype for index in indices if index is not None}
    return mask.dtype is torch.bool and bool(x.numel()) and kinds <= {torch.int64, torch.int32}


def masked_index(x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: float) -> object:
    if not _fits(x, mask, indices):
        return NotImplemented
    chosen = aten.index.Tensor(x, _inside(x, indices))
    return chosen.masked_fill(~mask, fill)


def masked_index_add(
    x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor
) -> object:
    if not _fits(x, mask, indices):
        return NotImplemented
    added = values.masked_fill(~mask, 0)
    return aten.index_put.default(x, _inside(x, indices), added, True)


def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> object:
    """The first elements that are not zero, each counted by those before it."""
    if size < 0:
        return NotImplemented
    if not x.dim() or not x.numel() or not size:
        return aten.full.default([size, x.dim()], fill_value, dtype=torch.int64, device=x.device)
    counted = (x != 0).reshape(-1)
    place = counted.to(torch.int64).cumsum(0) - 1
    place = torch.where(counted & (place < size), place, size)  # one behind the end for others
    empty = aten.full.default([size + 1], -1, dtype=torch.int64, device=x.device)
    found = empty.scatter(0, place, torch.arange(x.numel(), device=x.device))[:size]
    columns, rest = [], found
    for extent in reversed(x.shape):
        columns.append(torch.where(found < 0, fill_value, rest % extent))
        rest = rest.div(extent, rounding_mode="trunc")
    return torch.stack(columns[::-1], 1)


def chunked(tensors: Sequence[Tensor], dim: int, num_chunks: int) -> object:
    """Each tensor padded to whole chunks along `dim`; the chunks of all, flat, side by side."""
    first = tensors[0]
    if dim < 0 and all(each.dim() == first.dim() for each in tensors):
        dim += first.dim()
    if dim < 0 or num_chunks < 1 or any(dim >= each.dim() for each in tensors):
        return NotImplemented
    if any(each.dtype != first.dtype or each.shape[:dim] != first.shape[:dim] for each in tensors):
        return NotImplemented
    if not all(each.numel() for each in tensors):
        return NotImplemented
    parts = []
    for each in tensors:
        behind = -each.shape[dim] % num_chunks
        pad = [0, 0] * (each.dim() - dim - 1) + [0, behind]
        whole = torch.constant_pad_nd(each, pad, 0) if behind else each
        parts.append(whole.reshape([*each.shape[:dim], num_chunks, -1]))
    return torch.cat(parts, dim + 1)


def is_number(
    x: Tensor, number: float, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    return x != number if invert else x == number


def is_number_in(
    number: float, x: Tensor, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    found = (x == number).any()
    return ~found if invert else found


TABLE: dict[OpOverload, Rule] = {
    aten._unsafe_masked_index.default: masked_index,
    aten._unsafe_masked_index_put_accumulate.default: masked_index_add,
    aten.nonzero_static.default: nonzero_static,
    aten._chunk_cat.default: chunked,
    aten.isin.Tensor_Scalar: is_number,
    aten.isin.Scalar_Tensor: is_number_in,
}
"""Choices, by their operators."""
