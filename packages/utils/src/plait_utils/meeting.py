"""Whether tensors over one storage have elements in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cmp_to_key
from math import gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_TRIES = 2000
"""After how many sums of strides two tensors count as ones that may meet."""


def may_meet(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether elements of two tensors over one storage may lie at one place; False only where
    that is certain."""
    if not left.numel() or not right.numel():
        return False
    if left.dtype != right.dtype:
        return True
    is_open = left._has_symbolic_sizes_strides or right._has_symbolic_sizes_strides
    if is_open and are_separate_boxes(left, right):
        return False
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


def are_separate_boxes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors are parts of one that have no index in common along some dimension.

    Sizes are only compared, which leaves symbolic ones open. True is certain, False is not.
    """
    steps: Sequence[int] = left.stride()
    if left.dim() != right.dim() or any(a != b for a, b in zip(steps, right.stride(), strict=True)):
        return False

    def is_before(one: int, other: int) -> int:
        return 1 if steps[one] < steps[other] else -1

    order = sorted(range(len(steps)), key=cmp_to_key(is_before))
    first, second = left, right
    if second.storage_offset() < first.storage_offset():
        first, second = right, left
    distance = second.storage_offset() - first.storage_offset()
    reach, separate = 0, False
    starts = {}
    for axis in order:
        step = steps[axis]
        starts[axis] = 0 if distance < step or step == 0 else distance // step
        distance = distance - starts[axis] * step
    if distance != 0:
        return False
    for axis in reversed(order):
        # Indices are digits: those along smaller steps reach no further than one of this.
        if reach >= steps[axis]:
            return False
        most = max(first.shape[axis], starts[axis] + second.shape[axis])
        reach = reach + (most - 1) * steps[axis]
        separate = separate or bool(first.shape[axis] <= starts[axis])
    return separate


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
