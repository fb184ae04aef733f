"""Device functions that sort the rows of a block; generated kernels call them as `device`'s.

Keys are integers, or pairs of them, of which the second counts where the first are equal: those
are two blocks, the elements of which stay beside each other.
"""

# Device functions are compiled by Triton and have no Python types.
# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-untyped-call"
# mypy: disable-error-code="no-any-return, assignment, unused-ignore"

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def _log2(number):
    return number.bit_length() - 1


@triton.jit
def sorted_rows(value):
    """[X, R] integers, each row in ascending order, by a bitonic network."""
    if value.shape[1] == 1:
        return value
    return tl.sort(value, 1)


@triton.jit
def least_of_rows(value, count: tl.constexpr):
    """[X, R] to [X, R]: the `count` least integers of each row in ascending order, again and again.

    What is sorted is half of what is left, merge by merge (A. Shanbhag et al.: Efficient Top-K
    Query Processing on Massively Parallel Hardware, 2018).
    """
    if count == 1:
        least = tl.min(value, 1, keep_dims=True)
    else:
        least = ~tl.topk(~value, count)
    return _again(least, value.shape[1] // count)


@triton.jit
def sorted_pairs(first, second):
    """Pairs of [X, R] integers, each row in ascending order, by a bitonic network."""
    if first.shape[1] == 1:
        return first, second
    return _least_pairs(first, second, first.shape[1])


@triton.jit
def least_of_pairs(first, second, count: tl.constexpr):
    """[X, R] to [X, R]: the `count` least pairs of each row in ascending order, again and again, as
    `least_of_rows` finds them."""
    times: tl.constexpr = first.shape[1] // count
    if count == 1:
        first, second = _smaller_pairs(first, second, 1, True)
    else:
        first, second = _least_pairs(first, second, count)
    return _again(first, times), _again(second, times)


@triton.jit
def _again(least, times: tl.constexpr):
    """[X, K] to [X, times * K]: each row so many times."""
    rows: tl.constexpr = least.shape[0]
    count: tl.constexpr = least.shape[1]
    again = tl.broadcast_to(least[:, None, :], [rows, times, count])
    return tl.reshape(again, [rows, times * count])


@triton.jit
def _least_pairs(first, second, count: tl.constexpr):
    """[X, R] to [X, count]: the least pairs of each row in ascending order; more than one.

    The network is that of `tl.topk`: over a dimension of 2 for each bit of an element's place,
    runs of `count` are sorted up and down by turns; then the lesser halves of two neighbours are
    kept, and sorted again.
    """
    rows: tl.constexpr = first.shape[0]
    stages: tl.constexpr = _log2(first.shape[1])
    kept: tl.constexpr = _log2(count)
    dims: tl.constexpr = _log2(first.shape[0]) + stages
    first = tl.reshape(first, [2] * dims)
    second = tl.reshape(second, [2] * dims)
    for stage in tl.static_range(1, kept + 1):
        first, second = _merged_pairs(first, second, stage, stage < stages)
    for stage in tl.static_range(kept + 1, stages + 1):
        first, second = _smaller_pairs(first, second, len(first.shape) - 1 - kept, False)
        first, second = _merged_pairs(first, second, kept, stage < stages)
    return tl.reshape(first, [rows, count]), tl.reshape(second, [rows, count])


@triton.jit
def _merged_pairs(first, second, stage: tl.constexpr, alternates: tl.constexpr):
    """Bitonic runs of `2 ** stage` pairs in ascending order, or up and down by turns."""
    dims: tl.constexpr = len(first.shape)
    if alternates:
        turned = _place_along(dims - 1 - stage, dims)
    else:
        turned = 0
    for step in tl.static_range(stage):
        first, second = _exchanged_pairs(first, second, dims - stage + step, turned)
    return first, second


@triton.jit
def _exchanged_pairs(first, second, axis: tl.constexpr, turned):
    """The lesser one of two neighbours along an axis first; last where `turned` is 1."""
    is_last = _place_along(axis, len(first.shape)) ^ turned
    other_first = first ^ tl.xor_sum(first, axis, True)
    other_second = second ^ tl.xor_sum(second, axis, True)
    is_larger = (first > other_first) | ((first == other_first) & (second > other_second))
    is_moved = is_larger != (is_last == 1)
    return tl.where(is_moved, other_first, first), tl.where(is_moved, other_second, second)


@triton.jit
def _place_along(axis: tl.constexpr, dims: tl.constexpr):
    """0 and 1 along one of so many dimensions."""
    return tl.reshape(tl.arange(0, 2), [1] * axis + [2] + [1] * (dims - 1 - axis))


@triton.jit
def _smaller_pairs(first, second, axis: tl.constexpr, keep_dims: tl.constexpr):
    """The least of the pairs along an axis."""
    least = tl.min(first, axis, keep_dims=True)
    largest: tl.constexpr = 2147483647 if second.dtype == tl.int32 else 9223372036854775807
    smaller = tl.min(tl.where(first == least, second, largest), axis, keep_dims=keep_dims)
    return tl.min(first, axis, keep_dims=keep_dims), smaller
