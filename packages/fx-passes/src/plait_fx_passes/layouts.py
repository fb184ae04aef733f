"""Questions about strides that sizes of one and empty tensors must not confuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import gcd, prod

import torch

_UNKNOWN_SIZE = 4096
"""Stands for a symbolic size of which nothing is known."""

_TRIES = 2000
"""After how many sums of strides two tensors count as ones that may meet."""


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


def may_meet(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether elements of two tensors over one storage may lie at one place; False only where
    that is certain."""
    if not left.numel() or not right.numel():
        return False
    if left.dtype != right.dtype:
        return True
    # At one place lie a[i] and b[j] where sum(i * steps of a) - sum(j * steps of b) is the
    # distance of their first elements; along equal steps only the difference of i and j counts.
    least, most = Counter[int](), Counter[int]()
    for size, step in zip(left.shape, left.stride(), strict=True):
        most[int(step)] += int(size) - 1
    for size, step in zip(right.shape, right.stride(), strict=True):
        least[int(step)] -= int(size) - 1
    steps = sorted((step for step in {*least, *most} if step), reverse=True)
    ranges = [(step, least[step], most[step]) for step in steps]
    distance = int(right.storage_offset()) - int(left.storage_offset())
    return _is_sum(distance, ranges)


def _is_sum(distance: int, ranges: Sequence[tuple[int, int, int]]) -> bool:
    """Whether the number may be a sum of multiples of steps, each within its least and its most."""
    rest = [(0, 0, 0)]
    for step, least, most in reversed(ranges):
        low, high, common = rest[-1]
        rest.append((low + least * step, high + most * step, gcd(common, step)))
    rest.reverse()
    waiting, tries = [(0, distance)], 0
    while waiting and tries < _TRIES:
        tries += 1
        at, left = waiting.pop()
        low, high, common = rest[at]
        if not low <= left <= high or (left % common if common else left):
            continue
        if at == len(ranges):
            return True
        step, least, most = ranges[at]
        low, high, _ = rest[at + 1]
        first, last = max(least, -((high - left) // step)), min(most, (left - low) // step)
        if last - first > _TRIES:
            return True
        waiting += [(at + 1, left - times * step) for times in range(first, last + 1)]
    return bool(waiting)
