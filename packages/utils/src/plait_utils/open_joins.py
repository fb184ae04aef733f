"""Joins of tensors whose sizes may be symbolic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def block_diag(*tensors: Any) -> Any:
    """`torch.block_diag`: matrices, rows and numbers one behind the other along the diagonal."""
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tuple(tensors[0])
    if not tensors or not all(isinstance(each, Tensor) and each.dim() <= 2 for each in tensors):
        return NotImplemented
    if len({(each.dtype, each.device) for each in tensors}) > 1:
        return NotImplemented
    blocks = [each if each.dim() == 2 else each.reshape(1, -1) for each in tensors]
    rows = []
    for place, block in enumerate(blocks):
        widths = [
            [each.shape[1] for each in side] for side in (blocks[:place], blocks[place + 1 :])
        ]
        left, right = (block.new_zeros([block.shape[0], sum(each)]) for each in widths)
        rows.append(torch.cat([left] * bool(place) + [block] + [right] * bool(widths[1]), 1))
    return torch.cat(rows, 0)
