"""Operators that only rearrange elements, in terms of views, ``cat`` and ``where``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return torch.cat([tensor.unsqueeze(dim) for tensor in tensors], dim)


def repeat(x: Tensor, repeats: Sequence[int]) -> object:
    """Each dimension of size n repeated r times is a view of size (r, n), copied once."""
    missing = len(repeats) - x.dim()
    if missing < 0:
        return NotImplemented
    sizes = [1] * missing + list(x.shape)
    pairs = [size for each in sizes for size in (1, each)]
    wanted = [n for each, size in zip(repeats, sizes, strict=True) for n in (each, size)]
    final = [each * size for each, size in zip(repeats, sizes, strict=True)]
    if 0 in final:
        return aten.full.default(final, 0, dtype=x.dtype, device=x.device)
    spread = x.reshape(pairs).expand(wanted)
    return spread.clone(memory_format=torch.contiguous_format).view(final)


def _triangle(x: Tensor, diagonal: int) -> tuple[Tensor, Tensor]:
    rows = torch.arange(x.shape[-2], device=x.device).unsqueeze(-1)
    columns = torch.arange(x.shape[-1], device=x.device)
    return rows + diagonal, columns


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    rows, columns = _triangle(x, diagonal)
    return torch.where(columns <= rows, x, _zero(x))


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    rows, columns = _triangle(x, diagonal)
    return torch.where(columns >= rows, x, _zero(x))


def _zero(x: Tensor) -> Tensor:
    zero: Tensor = aten.full.default([], 0, dtype=x.dtype, device=x.device)
    return zero


def pixel_shuffle(x: Tensor, factor: int) -> object:
    if x.dim() != 4:
        return NotImplemented
    batch, channels, height, width = x.shape
    blocks = x.reshape(batch, channels // factor**2, factor, factor, height, width)
    spread = blocks.permute(0, 1, 4, 2, 5, 3)
    return spread.reshape(batch, channels // factor**2, height * factor, width * factor)


TABLE: dict[OpOverload, Rule] = {
    aten.stack.default: stack,
    aten.repeat.default: repeat,
    aten.tril.default: tril,
    aten.triu.default: triu,
    aten.pixel_shuffle.default: pixel_shuffle,
}
