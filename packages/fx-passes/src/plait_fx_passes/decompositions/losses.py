"""Loss functions, in the formulas of eager's CPU kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.decompositions.precision import rounded_once, unrounded
from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten
_MEAN, _SUM = 1, 2


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss.mean() if reduction == _MEAN else loss.sum() if reduction == _SUM else loss


def mse_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    return _reduced((x - target) ** 2, reduction)


def huber_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0) -> Tensor:
    distance = (x - target).abs()
    near, far = distance * distance * 0.5, (distance - 0.5 * delta) * delta
    return _reduced(torch.where(distance <= delta, near, far), reduction)


def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0) -> Tensor:
    distance = (x - target).abs()
    if beta == 0:
        return _reduced(distance, reduction)
    near, far = distance * distance * 0.5 / beta, distance - 0.5 * beta
    return _reduced(torch.where(distance < beta, near, far), reduction)


def soft_margin_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    return _reduced(torch.log(torch.exp(-x * target) + 1), reduction)


def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    logarithm: Tensor = aten.log_sigmoid.default(x)
    if pos_weight is not None:
        logarithm = ((pos_weight - 1) * target + 1) * logarithm
    loss = (1 - target) * x - logarithm
    return _reduced(loss if weight is None else loss * weight, reduction)


def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> object:
    """Minus the element that each target names, along the classes: axis 1, or the only one.

    The second result is the sum of weights that a mean divides by.
    """
    if not x.numel() or not target.numel() or target.dtype != torch.int64:
        return NotImplemented
    classes = 1 if x.dim() > 1 else 0
    counts = target != ignore_index
    named = torch.where(counts, target, 0)
    picked = torch.gather(x, classes, named.unsqueeze(classes)).squeeze(classes)
    one = aten.full.default([], 1, dtype=x.dtype, device=x.device)
    scale = one if weight is None else weight.index_select(0, named.reshape(-1)).view(target.shape)
    loss = torch.where(counts, -picked * scale, 0.0)
    if reduction not in (_MEAN, _SUM):
        return loss, aten.full.default([], 0, dtype=x.dtype, device=x.device)
    total = torch.where(counts, scale, 0.0).sum()
    summed = loss.sum()
    return (summed / total if reduction == _MEAN else summed), total


def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: float = 1,
    margin: float = 1,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> object:
    """How far each class is from staying `margin` behind the one that the target names."""
    rows = x if x.dim() == 2 else x.reshape(1, -1)
    classes = rows.shape[1]
    fits = target.dim() < 2 and target.numel() == rows.shape[0] and target.dtype == torch.int64
    if not x.numel() or x.dim() > 2 or not fits or p not in (1, 2):
        return NotImplemented
    if weight is not None and weight.shape != (classes,):
        return NotImplemented
    if reduction not in (_MEAN, _SUM) and target.dim() < x.dim() == 1:
        return NotImplemented  # torch's meta kernel has another shape
    named = target.reshape(-1, 1)
    behind = margin - rows.gather(1, named) + rows
    cost = behind if p == 1 else behind * behind
    if weight is not None:
        cost = cost * weight.index_select(0, named.reshape(-1)).unsqueeze(1)
    counts = (behind > 0) & (torch.arange(classes, device=x.device) != named)
    loss = torch.where(counts, cost, 0.0).sum(1) / classes
    return _reduced(loss.reshape(target.shape), reduction)


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> object:
    """Rows less their largest element, and less the logarithm of their exponentials' sum.

    What is as large as `x` may then be computed again from `x` and two numbers for each row.
    """
    if half_to_float or not x.dim() or not x.numel():
        return NotImplemented
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


TABLE: dict[OpOverload, Rule] = {
    aten._log_softmax.default: rounded_once(log_softmax),
    aten.mse_loss.default: mse_loss,
    aten.nll_loss_forward.default: rounded_once(nll_loss),
    aten.nll_loss2d_forward.default: rounded_once(nll_loss),
    aten.multi_margin_loss.default: rounded_once(multi_margin_loss),
    aten.huber_loss.default: rounded_once(huber_loss),
    aten.smooth_l1_loss.default: rounded_once(smooth_l1_loss),
    aten.soft_margin_loss.default: unrounded(soft_margin_loss),  # exp overflows float16
    aten.binary_cross_entropy_with_logits.default: rounded_once(binary_cross_entropy_with_logits),
}
"""Losses as elementwise operators and a reduction."""
