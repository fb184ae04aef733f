"""How torch lays out what index tensors choose: as its TensorIterator does.

Torch's own kernel for tensors without data looks at the strides of the tensor alone, and so takes
what a transposed index chooses for rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plait_utils.fake_iterators import Geometry, iterated_strides, row_major


def index(input: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
    """`aten.index` by integers; NotImplemented for masks, open sizes and what is an error."""
    given = {axis: each for axis, each in enumerate(indices) if each is not None}
    if not given or len(indices) > input.dim():
        return NotImplemented
    numbers = [n for t in (input, *given.values()) for n in (*t.shape, *t.stride())]
    if any(type(n) is not int for n in numbers):
        return NotImplemented
    if any(t.dtype is not torch.int64 for t in given.values()) or input.is_quantized:
        return NotImplemented
    try:
        shapes = [t.shape for t in given.values()]
        chosen = tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]  # torch's
    except RuntimeError:
        return NotImplemented
    if 0 in chosen or 0 in input.shape:
        return NotImplemented
    # What is chosen stands where the indices are, or in front where there are others between.
    first, last = min(given), max(given)
    around = [axis for axis in range(input.dim()) if axis not in given]
    start = first if last - first + 1 == len(given) else 0
    rest = [(input.shape[axis], input.stride(axis)) for axis in around]
    before, after = rest[:start], rest[start:]
    wide = [*before, *((size, 0) for size in chosen), *after]
    shape = tuple(size for size, _ in wide)
    framed = (*(1 for _ in before), *chosen, *(1 for _ in after))
    steps = [_expanded((tuple(t.shape), t.stride()), chosen) for t in given.values()]
    placed = list(dict.fromkeys(_viewed((chosen, each), framed) for each in steps))
    if input.is_cuda and len(placed) > 1:
        placed = [row_major(framed)]  # kernels there want indices that lie alike
    broadcast = (
        tuple(
            step if own == size else 0 for step, own, size in zip(each, framed, shape, strict=True)
        )
        for each in placed
    )
    strides = iterated_strides(shape, [tuple(step for _, step in wide), *broadcast])
    return torch.empty_strided(shape, strides, dtype=input.dtype, device=input.device)


def _expanded(given: Geometry, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor that is expanded to a shape, as torch gives them, size 1 included."""
    sizes, steps = given
    if sizes == tuple(shape):
        return steps
    strides: list[int] = []  # from the last on
    inner = 1
    for axis in range(1, len(shape) + 1):
        known = axis <= len(sizes)
        size, step = (sizes[-axis], steps[-axis]) if known else (1, inner)
        strides.append(step if size == shape[-axis] else 0)
        inner = shape[-axis] * strides[-1]
    return tuple(reversed(strides))


def _viewed(given: Geometry, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor that is reshaped by adding dimensions of size 1, as torch gives them."""
    sizes, steps = given
    if not sizes:
        return (1,) * len(shape)
    strides = [0] * len(shape)
    new, base, total, viewed = len(shape) - 1, steps[-1], 1, 1
    for old in reversed(range(len(sizes))):
        total *= sizes[old]
        if old and (sizes[old - 1] == 1 or steps[old - 1] == total * base):
            continue  # the next dimension goes on where this one ends
        while new >= 0 and (viewed < total or shape[new] == 1):
            strides[new] = viewed * base
            viewed *= shape[new]
            new -= 1
        base, total, viewed = steps[old - 1], 1, 1
    return tuple(strides)
