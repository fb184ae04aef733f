"""Normalization layers whose statistics are known or can be computed by plain reductions."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.decompositions.precision import parameter_dtype, statistics_dtype, wide
from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten


def _per_channel(statistic: Tensor, like: Tensor) -> Tensor:
    return statistic.view([1, -1] + [1] * (like.dim() - 2))


def batch_norm_inference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> object:
    """One multiply and one add for each element, by coefficients for each channel.

    The statistics that a backward would read are left empty by the CPU's kernel alone.
    """
    kept = statistics_dtype(x, weight, bias, running_mean, running_var)
    if kept is None or x.dim() < 2:
        return NotImplemented
    inverse = 1 / torch.sqrt(wide(running_var) + eps)
    scale = inverse if weight is None else inverse * wide(weight)
    shift = -(wide(running_mean) * scale)
    if bias is not None:
        shift = shift + wide(bias)
    out = (wide(x) * _per_channel(scale, x) + _per_channel(shift, x)).to(x.dtype)
    if x.device.type != "cpu":
        return out, wide(running_mean).clone(), inverse
    none = x.new_empty(0, dtype=kept)
    return out, none, none.clone()


def batch_norm_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> object:
    """Batch statistics, and the running ones moved toward them, in the statistics' type."""
    kept = statistics_dtype(x, weight, bias, running_mean, running_var)
    if kept is None or x.dim() < 2 or not training:
        return NotImplemented
    out, mean, inverse, var = _normalized(x, weight, bias, eps)
    count = x.numel() / x.shape[1]
    unbiased = var * (count / (count - 1)) if count > 1 else var
    moved = (
        (now * momentum + wide(before) * (1 - momentum)).to(kept)
        for now, before in ((mean, running_mean), (unbiased, running_var))
    )
    return (out, mean.to(kept), inverse.to(kept), *moved)


def batch_norm_with_update(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> object:
    """The same with a reserve that kernels of the CPU leave empty."""
    if x.device.type != "cpu":
        return NotImplemented
    parts = batch_norm_training(x, weight, bias, running_mean, running_var, True, momentum, eps)
    if not isinstance(parts, tuple):
        return NotImplemented
    return *parts[:3], x.new_empty(0, dtype=torch.uint8), *parts[3:]


def batch_norm_without_statistics(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> object:
    kept = statistics_dtype(x, weight, bias)
    if kept is None or x.dim() < 2 or not training:
        return NotImplemented
    out, mean, inverse, _ = _normalized(x, weight, bias, eps)
    return out, mean.to(kept), inverse.to(kept)


def _normalized(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Statistics of half precision are float32."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    var, mean = aten.var_mean.correction(wide(x), axes, correction=0)
    inverse = torch.rsqrt(var + eps)
    out = (wide(x) - _per_channel(mean, x)) * _per_channel(inverse, x)
    if weight is not None:
        out = out * _per_channel(wide(weight), x)
    if bias is not None:
        out = out + _per_channel(wide(bias), x)
    return out.to(x.dtype), mean, inverse, var


def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> object:
    """Half precision is computed in float32; the statistics are kept in what weights have.

    Channels and pixels stay dimensions of their own, so that images may be laid out with channels
    last without a copy.
    """
    if not x.dtype.is_floating_point or x.numel() == 0 or not x.is_contiguous():
        return NotImplemented
    image = surely_equal(x.shape[:2], (batch, channels))
    grouped = wide(x).view(batch, groups, channels // groups, *(x.shape[2:] if image else [pixels]))
    axes = list(range(2, grouped.dim()))
    var, mean = aten.var_mean.correction(grouped, axes, correction=0, keepdim=True)
    inverse = torch.rsqrt(var + eps)
    out = ((grouped - mean) * inverse).view(x.shape)
    if weight is not None:
        out = out * _per_channel(wide(weight), x)
    if bias is not None:
        out = out + _per_channel(wide(bias), x)
    kept = parameter_dtype(x, weight, bias)
    if kept is None:
        kept = x.dtype if weight is None else weight.dtype
    statistics = (each.view(batch, groups).to(kept) for each in (mean, inverse))
    return out.to(x.dtype), *statistics


def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax that gives zeros, not NaN, where everything is masked out."""
    hidden = (x == -math.inf).all(dim, keepdim=True)
    return torch.where(hidden, 0.0, torch.softmax(x, dim, dtype))


TABLE: dict[OpOverload, Rule] = {
    aten._native_batch_norm_legit_no_training.default: batch_norm_inference,
    aten._native_batch_norm_legit_functional.default: batch_norm_training,
    aten._batch_norm_with_update_functional.default: batch_norm_with_update,
    aten._native_batch_norm_legit.no_stats: batch_norm_without_statistics,
    aten.native_group_norm.default: group_norm,
    aten._safe_softmax.default: safe_softmax,
}
