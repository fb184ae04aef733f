"""Whether tensors with memory in common have elements in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

_MOST_STEPS = 1000
_Span = tuple[int, int, int]
"""A stride, and the least and the greatest factor that it may have."""


def may_overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors, fake ones too, have an element in the same place.

    True as well where that is not known, as for symbolic sizes. An element of the first lies where
    one of the second does if a sum of strides, each by a number below its size, is the distance
    of their first elements.
    """
    if first.untyped_storage()._cdata != second.untyped_storage()._cdata:
        return False
    numbers = [*_geometry(first), *_geometry(second)]
    if first.dtype != second.dtype or not all(type(each) is int for each in numbers):
        return True
    if not first.numel() or not second.numel():
        return False
    spans: dict[int, tuple[int, int]] = {}
    for size, stride in zip(first.shape, first.stride(), strict=True):
        low, high = spans.get(stride, (0, 0))
        spans[stride] = low, high + size - 1
    for size, stride in zip(second.shape, second.stride(), strict=True):
        low, high = spans.get(stride, (0, 0))
        spans[stride] = low - size + 1, high
    spans.pop(0, None)
    distance = int(second.storage_offset() - first.storage_offset())
    ordered = [(stride, *spans[stride]) for stride in sorted(spans, reverse=True)]
    return _is_sum(distance, ordered, iter(range(_MOST_STEPS)))


def _geometry(tensor: torch.Tensor) -> Sequence[object]:
    return (*tensor.shape, *tensor.stride(), tensor.storage_offset())


def _is_sum(distance: int, spans: Sequence[_Span], steps: Iterator[int]) -> bool:
    """Whether a number is a sum of strides times factors; True where that takes too long."""
    if not spans:
        return distance == 0
    (stride, low, high), *rest = spans
    least = sum(each * lowest for each, lowest, _ in rest)
    most = sum(each * highest for each, _, highest in rest)
    first = max(low, -((most - distance) // stride))
    last = min(high, (distance - least) // stride)
    for factor in range(first, last + 1):
        if next(steps, None) is None or _is_sum(distance - factor * stride, rest, steps):
            return True
    return False
