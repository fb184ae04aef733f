"""Gradients of padding: what stands in several places of the result gets what all of them get."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.decompositions.precision import of_complex_numbers_too
from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten


def reflection_pad_backward(grad: Tensor, x: Tensor, padding: Sequence[int]) -> object:
    """The elements at each side, turned round, beside the first and the last element."""

    def folded(side: Tensor, axis: int, size: int, is_before: bool) -> Tensor:
        count = side.shape[axis]
        rest = size - 1 - count
        return _between_zeros(side.flip(axis), axis, *((1, rest) if is_before else (rest, 1)))

    return _gathered(grad, x, padding, folded)


def replication_pad_backward(grad: Tensor, x: Tensor, padding: Sequence[int]) -> object:
    """The first and the last element get the sums of what is beside them."""

    def folded(side: Tensor, axis: int, size: int, is_before: bool) -> Tensor:
        total = side.sum(axis, keepdim=True)
        return _between_zeros(total, axis, *((0, size - 1) if is_before else (size - 1, 0)))

    return _gathered(grad, x, padding, folded)


def _gathered(grad: Tensor, x: Tensor, padding: Sequence[int], folded: object) -> object:
    """Axis by axis from the last one, of which come the first two numbers of `padding`."""
    assert callable(folded)
    if not x.numel() or not grad.numel():
        return NotImplemented
    for number in range(len(padding) // 2):
        axis = grad.dim() - 1 - number
        before, after = padding[2 * number], padding[2 * number + 1]
        size, padded = x.shape[axis], grad.shape[axis]
        kept = padded - max(before, 0) - max(after, 0)
        inside = grad.narrow(axis, max(before, 0), kept)
        found = _between_zeros(inside, axis, max(-before, 0), max(-after, 0))
        if before > 0:
            found = found + folded(grad.narrow(axis, 0, before), axis, size, True)
        if after > 0:
            found = found + folded(grad.narrow(axis, padded - after, after), axis, size, False)
        grad = found
    return grad


def _between_zeros(x: Tensor, axis: int, before: int, after: int) -> Tensor:
    behind = x.dim() - 1 - axis
    return torch.constant_pad_nd(x, [0, 0] * behind + [before, after])


TABLE: dict[OpOverload, Rule] = {
    getattr(aten, f"{kind}_pad{rank}d_backward").default: of_complex_numbers_too(rule)
    for kind, rule in (
        ("reflection", reflection_pad_backward),
        ("replication", replication_pad_backward),
    )
    for rank in (1, 2, 3)
}
"""Gradients of padding, by their operators."""
