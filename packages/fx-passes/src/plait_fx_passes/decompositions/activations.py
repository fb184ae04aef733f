"""Activation functions, in the formulas of eager's CPU kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.decompositions.precision import rounded_once, unrounded
from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return torch.where(x > 0, x, x * negative_slope)


def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    return torch.where(x <= 0, torch.expm1(x * input_scale) * (alpha * scale), x * scale)


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    scaled = x * beta
    return torch.where(scaled > threshold, x, torch.log1p(torch.exp(scaled)) / beta)


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    return torch.clamp(x, min_val, max_val)


def hardsigmoid(x: Tensor) -> Tensor:
    return torch.clamp(x + 3, 0, 6) / 6


def hardswish(x: Tensor) -> Tensor:
    return x * torch.clamp(x + 3, 0, 6) / 6


def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(torch.log1p(torch.exp(x)))


def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    """The second result is what eager's backward wants: ``exp(-|x|)``, and on GPUs nothing."""
    power = torch.exp(-torch.abs(x))
    kept = x.new_empty(0) if x.device.type == "cuda" else power
    return torch.clamp_max(x, 0) - torch.log1p(power), kept


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    return torch.where(x <= threshold, value, x)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    # Within the threshold the product keeps NaN.
    inside = torch.where(x < -lambd, x + lambd, x * 0)
    return torch.where(x > lambd, x - lambd, inside)


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), 0.0, x)


def glu(x: Tensor, dim: int = -1) -> Tensor:
    half = x.shape[dim] // 2
    return x.narrow(dim, 0, half) * torch.sigmoid(x.narrow(dim, half, half))


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    return torch.where(x > 0, x, weight * x)


TABLE: dict[OpOverload, Rule] = {
    **{
        op: unrounded(rule)
        for op, rule in (
            (aten.silu.default, silu),
            (aten.leaky_relu.default, leaky_relu),
            (aten.elu.default, elu),
            (aten.softplus.default, softplus),
            (aten.hardtanh.default, hardtanh),
            (aten.hardsigmoid.default, hardsigmoid),
            (aten.hardswish.default, hardswish),
        )
    },
    **{
        op: rounded_once(rule)
        for op, rule in (
            (aten.mish.default, mish),
            (aten.log_sigmoid_forward.default, log_sigmoid),
            (aten.threshold.default, threshold),
            (aten.softshrink.default, softshrink),
            (aten.hardshrink.default, hardshrink),
            (aten.glu.default, glu),
            (aten._prelu_kernel.default, prelu),
        )
    },
}
