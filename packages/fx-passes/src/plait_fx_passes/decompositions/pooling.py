"""Maxima over small windows, and where they came from, as arithmetic on shifted images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.decompositions.precision import unrounded
from plait_fx_passes.layouts import has_static_sizes
from plait_fx_passes.record.recorder import Rule
from plait_utils import dataclass

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
    window = _window(x, kernel, stride, padding, dilation, ceil_mode)
    if window is None:
        return NotImplemented
    best, place = _winners(x, window)
    width = x.shape[3]
    offset = torch.zeros((), dtype=torch.int64, device=x.device)
    for each in range(1, window.high * window.wide):
        offset = torch.where(
            place == each, each // window.wide * width + each % window.wide, offset
        )
    first = torch.arange(window.rows, device=x.device).view(window.rows, 1) * (window.down * width)
    corner = first + torch.arange(window.columns, device=x.device) * window.right
    return best, (offset + corner).expand(best.shape)


@dataclass(frozen=True, slots=True)
class _Window:
    """The sizes of a window, its steps, and how many steps there are."""

    high: int
    wide: int
    down: int
    right: int
    rows: int
    columns: int


def _window(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> _Window | None:
    """None where windows reach beyond the image, or have many points."""
    high, wide = _pair(kernel)
    down, right = _pair(stride) if stride else (high, wide)
    if x.dim() != 4 or x.numel() == 0 or any(padding) or set(dilation) != {1}:
        return None
    height, width = x.shape[2:]
    fits = not ceil_mode or not ((height - high) % down or (width - wide) % right)
    if high * wide > _MOST_POINTS or not fits or high > height or wide > width:
        return None
    rows, columns = (height - high) // down + 1, (width - wide) // right + 1
    return _Window(high, wide, down, right, rows, columns)


def _winners(x: Tensor, window: _Window) -> tuple[Tensor, Tensor]:
    """The largest in each window, and its number among the window's points."""

    def shifted(place: int) -> Tensor:
        i, j = divmod(place, window.wide)
        lines = x[:, :, i : i + (window.rows - 1) * window.down + 1 : window.down]
        return lines[..., j : j + (window.columns - 1) * window.right + 1 : window.right]

    best = shifted(0)
    winner = torch.zeros((), dtype=torch.int8, device=x.device)
    for place in range(1, window.high * window.wide):
        each = shifted(place)
        larger = (each > best) | torch.isnan(each)
        best = torch.where(larger, each, best)
        winner = torch.where(larger, place, winner)
    return best, winner.expand(best.shape)


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
    """Where windows tile the image, each point belongs to one, and sees whether it won.

    Who won follows from the image: eight bits instead of an index for each window.
    """
    window = _window(x, kernel, stride, padding, dilation, ceil_mode)
    if window is None or (window.down, window.right) != (window.high, window.wide):
        return NotImplemented
    height, width = x.shape[2:]
    is_open = not has_static_sizes(x)
    if not is_open and (height % window.high or width % window.wide):
        return NotImplemented

    def spread(each: Tensor) -> Tensor:
        cells = each.unsqueeze(3).unsqueeze(5)
        batch, channels, rows, _, columns, _ = cells.shape
        sizes = (batch, channels, rows, window.high, columns, window.wide)
        covered = (rows * window.high, columns * window.wide)
        whole = cells.expand(sizes).reshape(batch, channels, *covered)
        if not is_open:
            return whole
        # Whether windows cover the whole image depends on its sizes.
        return torch.constant_pad_nd(whole, (0, width - covered[1], 0, height - covered[0]))

    lines = torch.arange(height, device=x.device).view(height, 1) % window.high * window.wide
    places = lines + torch.arange(width, device=x.device) % window.wide
    _, winner = _winners(x, window)
    return torch.where(spread(winner) == places.to(torch.int8), spread(grad), 0.0)


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    return sizes[0], sizes[-1]


TABLE: dict[OpOverload, Rule] = {
    aten.max_pool2d_with_indices.default: unrounded(max_pool),
    aten.max_pool2d_with_indices_backward.default: unrounded(max_pool_backward),
}
