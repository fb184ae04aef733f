"""Questions about strides that sizes of one and empty tensors must not confuse."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

_UNKNOWN_SIZE = 4096
"""Stands for a symbolic size of which nothing is known."""


def surely_equal(left: Sequence[int | torch.SymInt], right: Sequence[int | torch.SymInt]) -> bool:
    """Whether sizes are equal whatever the symbolic ones among them are.

    Asking whether they are equal now would fix those that are so by chance.
    """
    return len(left) == len(right) and all(
        _expression(a) == _expression(b) for a, b in zip(left, right, strict=True)
    )


def _expression(size: int | torch.SymInt) -> object:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def has_static_sizes(tensor: torch.Tensor) -> bool:
    """Whether sizes and strides are numbers, and no symbols."""
    return all(type(each) is int for each in (*tensor.shape, *tensor.stride()))


def same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of the same shape place their elements alike.

    Strides of dimensions of size one, and of empty tensors, do not matter.
    """
    if not surely_equal(left.shape, right.shape):
        return False
    if surely_equal(left.stride(), right.stride()) or left.numel() == 0:
        return True
    return all(
        size == 1 or surely_equal([a], [b])
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


def traced_size(size: int | torch.SymInt) -> int:
    """A size as a number, for estimates: for a symbolic one the size that it was traced with.

    It asks nothing of the size's environment, so what is decided by it must not change results.
    """
    if isinstance(size, torch.SymInt):
        return int(size.node.hint) if size.node.has_hint() else _UNKNOWN_SIZE
    return size


def traced_numel(tensor: torch.Tensor) -> int:
    """How many elements a tensor has, for estimates."""
    return prod(map(traced_size, tensor.shape))


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
    return start, start + reach + 1
