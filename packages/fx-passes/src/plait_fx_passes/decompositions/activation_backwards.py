"""The operators that autograd calls for piecewise activations and losses, as arithmetic.

Formulas are those of eager's kernels; see `backwards.py`. For NaN these give in vectors another
result than in what is left of them: here it is that of vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.decompositions.precision import rounded_once
from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten
_MEAN = 1
_SIXTH = 0.1666666716337204
"""As float32, which eager takes for float64 too."""


def hardtanh_backward(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    return torch.where((x > low) & (x < high), grad, 0.0)


def hardsigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where((x > -3) & (x < 3), grad * _SIXTH, 0.0)


def hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    rest = torch.where(x >= 3, grad, grad * (x / 3 + 0.5))
    return torch.where(x <= -3, 0.0, rest)


def shrink_backward(grad: Tensor, x: Tensor, lambd: float) -> Tensor:
    return torch.where((x < -lambd) | (x > lambd), grad, 0.0)


def elu_backward(
    grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor
) -> Tensor:
    """Of the input, or of the result."""
    if is_result:
        below = grad * input_scale * (x + alpha * scale)
    else:
        below = grad * (input_scale * alpha * scale) * torch.exp(x * input_scale)
    return torch.where(x > 0, grad * scale, below)


def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    power = torch.exp(x * beta)
    return torch.where(x * beta > threshold, grad, grad * power / (power + 1))


def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    """The buffer holds ``exp(-|x|)``, and on GPUs nothing."""
    power = torch.exp(-torch.abs(x)) if x.device.type == "cuda" else buffer
    share = power / (power + 1)
    return grad * torch.where(x < 0, 1 - share, share)


def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    half = x.shape[dim] // 2
    gate = torch.sigmoid(x.narrow(dim, half, half))
    gated = (1 - gate) * gate * grad * x.narrow(dim, 0, half)
    return torch.cat([grad * gate, gated], dim)


def prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(x > 0, grad, weight * grad), torch.where(x > 0, 0.0, x * grad)


def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    return _shared((x - target) * 2 * grad, x, reduction)


def smooth_l1_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    distance = x - target
    near = distance * grad / beta if beta else distance * grad
    far = torch.where(distance <= -beta, -grad, grad)
    outside = (distance <= -beta) | (distance >= beta)
    return _shared(torch.where(outside, far, near), x, reduction)


def huber_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float
) -> Tensor:
    distance = x - target
    far = torch.where(distance <= -delta, -grad, grad) * delta
    outside = (distance <= -delta) | (distance >= delta)
    return _shared(torch.where(outside, far, distance * grad), x, reduction)


def _shared(gradient: Tensor, x: Tensor, reduction: int) -> Tensor:
    """What each element gets of a mean, or of a sum."""
    return gradient / x.numel() if reduction == _MEAN else gradient


TABLE: dict[OpOverload, Rule] = {
    op: rounded_once(rule)
    for op, rule in (
        (aten.hardtanh_backward.default, hardtanh_backward),
        (aten.hardsigmoid_backward.default, hardsigmoid_backward),
        (aten.hardswish_backward.default, hardswish_backward),
        (aten.softshrink_backward.default, shrink_backward),
        (aten.hardshrink_backward.default, shrink_backward),
        (aten.elu_backward.default, elu_backward),
        (aten.softplus_backward.default, softplus_backward),
        (aten.log_sigmoid_backward.default, log_sigmoid_backward),
        (aten.glu_backward.default, glu_backward),
        (aten._prelu_kernel_backward.default, prelu_backward),
        (aten.mse_loss_backward.default, mse_loss_backward),
        (aten.smooth_l1_loss_backward.default, smooth_l1_loss_backward),
        (aten.huber_loss_backward.default, huber_loss_backward),
    )
}
