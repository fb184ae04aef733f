"""Products of several tensors whose sizes may be symbolic, as torch makes them of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def kron(input: Tensor, other: Tensor) -> Any:
    """`torch.kron`: each element of one tensor by all of another."""
    dims = max(input.dim(), other.dim())
    rows, columns = ([*[1] * (dims - x.dim()), *x.shape] for x in (input, other))
    left = aten._unsafe_view(input, [size for each in rows for size in (each, 1)])
    right = aten._unsafe_view(other, [size for each in columns for size in (1, each)])
    sizes = [m * n for m, n in zip(rows, columns, strict=True)]
    return aten._unsafe_view(torch.mul(left, right), sizes)


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """`torch.bilinear`: `x @ W @ y` for each of several matrices W."""
    rows = input1.shape[:-1]
    sizes = (input1.shape[-1], input2.shape[-1]) if input1.dim() and input2.dim() else ()
    if input2.shape[:-1] != rows or weight.dim() != 3 or tuple(weight.shape[1:]) != sizes:
        return NotImplemented
    if bias is not None and bias.shape != weight.shape[:1]:
        return NotImplemented
    flat = [x.reshape(-1, x.shape[-1]) for x in (input1, input2)]
    found = aten._trilinear(flat[0], weight, flat[1], [1, 3], [0], [1, 2], [2, 3])
    found = found.reshape([*rows, weight.shape[0]])
    return found if bias is None else found + bias


def multi_dot(tensors: Sequence[Tensor]) -> Any:
    """`torch.linalg.multi_dot`: a product of matrices in the order that costs least.

    The first and the last may be vectors.
    """
    if len(tensors) < 2 or any(x.dim() != 2 for x in tensors[1:-1]):
        return NotImplemented
    if any(x.dim() not in (1, 2) for x in (tensors[0], tensors[-1])):
        return NotImplemented
    first, last = tensors[0], tensors[-1]
    matrices = [
        first.unsqueeze(0) if first.dim() == 1 else first,
        *tensors[1:-1],
        last.unsqueeze(-1) if last.dim() == 1 else last,
    ]
    sizes = [*[x.shape[0] for x in matrices], matrices[-1].shape[1]]
    if any(x.shape[1] != size for x, size in zip(matrices, sizes[1:], strict=True)):
        return NotImplemented
    found = _product(matrices, _splits(sizes), 0, len(matrices) - 1)
    shape = [*first.shape[: first.dim() - 1], *last.shape[1:]]
    return found.view(shape)


def _splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """For the matrices from one to another the last one of the left factor; see Cormen,
    Introduction to Algorithms, on matrix chains."""
    count = len(sizes) - 1
    costs: dict[tuple[int, int], int] = {(place, place): 0 for place in range(count)}
    found: dict[tuple[int, int], int] = {}
    if count == 3:  # torch takes the other one of two that cost the same
        left = sizes[0] * sizes[2] * (sizes[1] + sizes[3])
        right = sizes[1] * sizes[3] * (sizes[0] + sizes[2])
        return {(0, 1): 0, (1, 2): 1, (0, 2): 0 if left > right else 1}
    for length in range(1, count):
        for start in range(count - length):
            end = start + length
            for split in range(start, end):
                cost = costs[start, split] + costs[split + 1, end]
                cost = cost + sizes[start] * sizes[split + 1] * sizes[end + 1]
                if (start, end) not in costs or cost < costs[start, end]:
                    costs[start, end], found[start, end] = cost, split
    return found


def _product(
    matrices: Sequence[Tensor], splits: dict[tuple[int, int], int], start: int, end: int
) -> Tensor:
    if start == end:
        return matrices[start]
    split = splits[start, end]
    left = _product(matrices, splits, start, split)
    return torch.mm(left, _product(matrices, splits, split + 1, end))
