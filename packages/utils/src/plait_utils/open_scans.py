"""Running products of tensors whose sizes may be symbolic, with their gradient, and powers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def cumprod(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """`torch.cumprod`, whose own gradient asks for the size as a number."""
    x = input if dtype is None else input.to(dtype)
    if not x.is_floating_point() or not input.requires_grad or not torch.is_grad_enabled():
        return NotImplemented
    if not x.dim() or not -x.dim() <= dim < x.dim():
        return NotImplemented
    return _RunningProduct.apply(x, dim)  # type: ignore[no-untyped-call]  # torch's


class _RunningProduct(torch.autograd.Function):
    """A zero makes all products behind it zero, and alone has a gradient of these."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        made = x.cumprod(dim)
        ctx.save_for_backward(x, made)
        ctx.dim = dim
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, made = ctx.saved_tensors
        zeros = x == 0
        count = zeros.cumsum(ctx.dim)
        is_first = zeros & (count == 1)
        before = _from_behind(gradient * made, ctx.dim) / torch.where(zeros, 1, x)
        without = torch.where(is_first, 1, x).cumprod(ctx.dim)
        at_first = _from_behind(gradient * without, ctx.dim)
        behind = torch.where(is_first, at_first, 0)
        return torch.where(count == 0, before, behind), None


def _from_behind(x: Tensor, dim: int) -> Tensor:
    """Running sums that begin at the end."""
    return x.flip(dim).cumsum(dim).flip(dim)


def vander(x: Tensor, *, N: int | None = None) -> Any:  # torch's name
    """`torch.linalg.vander`: powers from 0 on, of each element a row."""
    if not x.is_floating_point() or not x.dim():
        return NotImplemented
    count = x.shape[-1] if N is None else N
    if not count > 1:
        return NotImplemented
    spread = x.unsqueeze(-1).expand([*x.shape, count - 1])
    powers = cumprod(spread, -1)
    powers = spread.cumprod(-1) if powers is NotImplemented else powers
    return torch.cat([powers.new_ones([*x.shape, 1]), powers], -1)
