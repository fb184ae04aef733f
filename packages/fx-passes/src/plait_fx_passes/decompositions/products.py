"""Products of vectors and matrices, as sums of products or as other products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.decompositions.precision import of_all_numbers, of_integers_too, rounded_once
from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten

_FEW = 1 << 16
"""Up to so many products, their sum as a loop costs less than the calls that ATen makes."""


def cross(x: Tensor, other: Tensor, *, dim: int = -1) -> object:
    if x.dtype != other.dtype:
        return NotImplemented
    return x.roll(-1, dim) * other.roll(-2, dim) - x.roll(-2, dim) * other.roll(-1, dim)


def addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> object:
    """The sum over matrices is a product of them side by side."""
    if not a.numel() or not b.numel() or not x.dtype == a.dtype == b.dtype:
        return NotImplemented
    batch, rows, inner = a.shape
    left = a.transpose(0, 1).reshape(rows, batch * inner)
    return torch.addmm(x, left, b.reshape(batch * inner, -1), beta=beta, alpha=alpha)


def trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> object:
    spread = []
    for tensor, axes in ((x, expand1), (y, expand2), (z, expand3)):
        for axis in axes:
            tensor = tensor.unsqueeze(axis)
        spread.append(tensor)
    count = prod(max(sizes) for sizes in zip(*(each.shape for each in spread), strict=True))
    if not sumdim or count > _FEW:
        return NotImplemented
    return (spread[0] * spread[1] * spread[2]).sum(list(sumdim))


def mvlgamma(x: Tensor, p: int) -> Tensor:
    """The multivariate log-gamma function: a sum of p of one variable, and a constant."""
    steps = torch.arange(-p * 0.5 + 0.5, 0.5, 0.5, dtype=x.dtype, device=x.device)
    constant = p * (p - 1) * 0.25 * 1.1447298858494002  # the logarithm of pi
    return (x.unsqueeze(-1) + steps).lgamma().sum(-1) + constant


def dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return grad * (mask.to(grad.dtype) * scale)


def block_diag(tensors: Sequence[Tensor]) -> object:
    """Matrices one behind the other, each between zeros."""
    matrices = [tensor.reshape(1, 1) if not tensor.dim() else tensor for tensor in tensors]
    matrices = [matrix if matrix.dim() == 2 else matrix.unsqueeze(0) for matrix in matrices]
    alike = all(matrix.dtype == matrices[0].dtype for matrix in matrices)
    if not alike or len(matrices) > 16:
        return NotImplemented
    wide, start, rows = sum(matrix.shape[1] for matrix in matrices), 0, []
    for matrix in matrices:
        behind = wide - start - matrix.shape[1]
        rows.append(torch.constant_pad_nd(matrix, [start, behind], 0))
        start += matrix.shape[1]
    return torch.cat(rows) if rows else NotImplemented


def is_among(
    x: Tensor, tests: Tensor, *, assume_unique: bool = False, invert: bool = False
) -> object:
    """By comparing with each of a few."""
    if tests.numel() > 64 or x.dtype != tests.dtype:
        return NotImplemented
    found = (x.unsqueeze(-1) == tests.flatten()).any(-1)
    return ~found if invert else found


TABLE: dict[OpOverload, Rule] = {
    aten.mvlgamma.default: of_integers_too(rounded_once(mvlgamma)),
    aten.linalg_cross.default: of_all_numbers(cross),
    aten.addbmm.default: of_all_numbers(addbmm),
    **{
        op: rounded_once(rule)
        for op, rule in (
            (aten._trilinear.default, trilinear),
            (aten.native_dropout_backward.default, dropout_backward),
        )
    },
    aten.block_diag.default: block_diag,
    aten.isin.Tensor_Tensor: is_among,
}
"""Products and the like, by their operators."""
