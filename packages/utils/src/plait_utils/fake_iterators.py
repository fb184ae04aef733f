"""The strides of results of torch's TensorIterator, from the sizes and strides of its operands.

After `reorder_dimensions` and `compute_fast_setup_type` of ATen's TensorIterator.
"""

from __future__ import annotations

from collections.abc import Sequence

Geometry = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides."""

_CHANNELS_LAST = (1, 3, 2, 0)


def elementwise_strides(shape: tuple[int, ...], operands: Sequence[Geometry]) -> tuple[int, ...]:
    """The strides of what an elementwise operator gives, of operands that broadcast to a shape."""
    if all(sizes == shape for sizes, _ in operands):
        rows = range(len(shape) - 1, -1, -1)
        if all(_follows(each, rows) for each in operands):
            return row_major(shape)
        if len(shape) == 4 and all(_follows(each, _CHANNELS_LAST) for each in operands):
            return _packed(shape, _CHANNELS_LAST)
        first = operands[0][1]
        if all(strides == first for _, strides in operands) and is_dense(operands[0]):
            return first
    broadcast = [_broadcast(each, shape) for each in operands]
    return iterated_strides(shape, broadcast)


def iterated_strides(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The strides of a result for those of operands with as many dimensions.

    Dimensions are ordered by the first operand that has an opinion, from the last on; where a
    dimension is broadcast an operand has none.
    """
    order = list(reversed(range(len(shape))))
    for start in range(1, len(order)):
        at = start
        for before in reversed(range(start)):
            compared = _compare(order[before], order[at], shape, operands)
            if compared < 0:
                break
            if compared > 0:
                order[before], order[at] = order[at], order[before]
                at = before
    return _packed(shape, order)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of rows after rows."""
    return _packed(shape, range(len(shape) - 1, -1, -1))


def _broadcast(given: Geometry, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of an operand in the dimensions of a shape, 0 where it is repeated."""
    missing = len(shape) - len(given[0])
    own = zip(*given, shape[missing:], strict=True)
    return (
        *(0 for _ in range(missing)),
        *(step if size == whole else 0 for size, step, whole in own),
    )


def is_dense(given: Geometry) -> bool:
    """Whether elements lie without gaps, each once, in any order of dimensions."""
    pairs = sorted(((step, size) for size, step in zip(*given, strict=True) if size != 1))
    wanted = 1
    for step, size in pairs:
        if step != wanted:
            return False
        wanted *= size
    return True


def _follows(given: Geometry, order: Sequence[int]) -> bool:
    """Whether elements lie without gaps in an order of dimensions, from the innermost on."""
    sizes, strides = given
    wanted = 1
    for dim in order:
        if sizes[dim] != 1:
            if strides[dim] != wanted:
                return False
            wanted *= sizes[dim]
    return True


def _packed(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps in an order of dimensions, from the innermost on."""
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def _compare(one: int, other: int, shape: Sequence[int], operands: Sequence[Sequence[int]]) -> int:
    """1 where dimension `one` belongs further out than `other`, -1 where it does not."""
    for strides in operands:
        if not strides[one] or not strides[other]:
            continue
        if strides[one] != strides[other]:
            return -1 if strides[one] < strides[other] else 1
        if shape[one] > shape[other]:
            return 1
    return 0
