"""Distances and what is scaled by them, as norms of differences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.decompositions.precision import of_complex_numbers_too
from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten

_ALWAYS_DIRECT = 2
"""ATen's number for distances that never come of matrix products."""
_FEW_ROWS = 25
"""Up to so many rows, ATen takes differences; euclidean distances of more are products."""


def norm(x: Tensor, p: float = 2) -> Tensor:
    return norm_along(x, p, [])


def norm_along(x: Tensor, p: float | None, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    order = 2 if p is None else p
    found: Tensor = aten.linalg_vector_norm.default(x, order, list(dim) or None, keepdim)
    return found


def pairs_apart(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> object:
    """The distance of each row of `x` from each of `y`."""
    rows, others = x.shape[-2], y.shape[-2]
    many = rows > _FEW_ROWS or others > _FEW_ROWS
    direct = compute_mode == _ALWAYS_DIRECT or (not compute_mode and not many)
    if y.dtype != x.dtype or p < 0 or many or (p == 2 and not direct):
        return NotImplemented
    return norm_along(x.unsqueeze(-2) - y.unsqueeze(-3), p, [-1])


def pairs_of_rows(x: Tensor, p: float = 2) -> object:
    """The distances of rows, each from those behind it: of pair k the rows i and j."""
    rows = x.shape[0]
    if x.dim() != 2 or p < 0:
        return NotImplemented
    if rows < 2:
        return x.new_empty(0)
    k = torch.arange(rows * (rows - 1) // 2, device=x.device)
    middle = rows - 0.5
    i = (middle - (middle * middle - 2 * k.to(torch.float64) - 1).sqrt()).to(torch.int64)
    j = k - rows * i + i * (i + 1) // 2 + i + 1
    return norm_along(x[i] - x[j], p, [-1])


def renorm(x: Tensor, p: float, dim: int, maxnorm: float) -> object:
    """What is longer than `maxnorm` is shortened to it."""
    if not x.numel():
        return NotImplemented
    axes = [axis for axis in range(x.dim()) if axis != dim % x.dim()]
    length = norm_along(x, p, axes, keepdim=True)
    return x * torch.where(length > maxnorm, maxnorm / (length + 1e-7), 1.0)


TABLE: dict[OpOverload, Rule] = {
    op: of_complex_numbers_too(rule)
    for op, rule in (
        (aten.norm.Scalar, norm),
        (aten.norm.ScalarOpt_dim, norm_along),
        (aten._cdist_forward.default, pairs_apart),
        (aten._pdist_forward.default, pairs_of_rows),
        (aten.renorm.default, renorm),
    )
}
"""Distances, by their operators."""
