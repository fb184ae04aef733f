"""Questions about strides that sizes of one and empty tensors must not confuse."""

from __future__ import annotations

import torch


def same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of the same shape place their elements alike.

    Strides of dimensions of size one, and of empty tensors, do not matter.
    """
    if left.shape != right.shape:
        return False
    if left.stride() == right.stride() or left.numel() == 0:
        return True
    return all(
        size == 1 or a == b
        for size, a, b in zip(left.shape, left.stride(), right.stride(), strict=True)
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements fill a stretch of memory, each once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return tensor.numel() == 0
        expected = stride * size
    return True


def may_overlap(tensor: torch.Tensor) -> bool:
    """Whether several elements may lie at one place; False only where that is certain."""
    if tensor.numel() < 2:
        return False
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def memory_order(tensor: torch.Tensor) -> list[int]:
    """The dimensions, slowest first: permuted by them, dense memory is contiguous."""
    return sorted(range(tensor.dim()), key=tensor.stride, reverse=True)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first storage element the tensor covers and the one after its last, in elements."""
    start = int(tensor.storage_offset())
    if tensor.numel() == 0:
        return start, start
    reach = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return start, start + int(reach) + 1
