"""Maxima over small windows, and where they came from, as arithmetic on shifted images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.decompositions.precision import unrounded
from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten

_MOST_POINTS = 9
"""The points of a window, each of which a loop reads by itself."""


def max_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> object:
    """The first of the largest in a window; the last NaN, if there is any."""
    high, wide = _pair(kernel)
    down, right = _pair(stride) if stride else (high, wide)
    if x.dim() != 4 or x.numel() == 0 or any(padding) or set(dilation) != {1}:
        return NotImplemented
    height, width = x.shape[2:]
    fits = not ceil_mode or not ((height - high) % down or (width - wide) % right)
    if high * wide > _MOST_POINTS or not fits or high > height or wide > width:
        return NotImplemented
    rows, columns = (height - high) // down + 1, (width - wide) // right + 1

    def shifted(place: int) -> Tensor:
        i, j = divmod(place, wide)
        lines = x[:, :, i : i + (rows - 1) * down + 1 : down]
        return lines[..., j : j + (columns - 1) * right + 1 : right]

    best = shifted(0)
    offset = torch.zeros((), dtype=torch.int64, device=x.device)
    for place in range(1, high * wide):
        each = shifted(place)
        larger = (each > best) | torch.isnan(each)
        best = torch.where(larger, each, best)
        offset = torch.where(larger, place // wide * width + place % wide, offset)
    first = torch.arange(rows, device=x.device).view(rows, 1) * (down * width)
    corner = first + torch.arange(columns, device=x.device) * right
    return best, (offset + corner).expand(best.shape)


def max_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> object:
    """Where windows tile the image, each point belongs to one, and sees whether it won."""
    high, wide = _pair(kernel)
    tiled = (_pair(stride) if stride else (high, wide)) == (high, wide)
    if x.dim() != 4 or x.numel() == 0 or not tiled or any(padding) or set(dilation) != {1}:
        return NotImplemented
    height, width = x.shape[2:]
    if height % high or width % wide:
        return NotImplemented

    def spread(each: Tensor) -> Tensor:
        cells = each.unsqueeze(3).unsqueeze(5)
        batch, channels, rows, _, columns, _ = cells.shape
        return cells.expand(batch, channels, rows, high, columns, wide).reshape(x.shape)

    places = torch.arange(height * width, device=x.device).view(height, width)
    return torch.where(spread(indices) == places, spread(grad), 0.0)


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    return sizes[0], sizes[-1]


TABLE: dict[OpOverload, Rule] = {
    aten.max_pool2d_with_indices.default: unrounded(max_pool),
    aten.max_pool2d_with_indices_backward.default: unrounded(max_pool_backward),
}
