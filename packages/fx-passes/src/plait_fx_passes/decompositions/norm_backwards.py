"""Gradients of normalizations, as the arithmetic that they do: so they fuse.

Half precision is computed in float32 and rounded once, whatever statistics and weights are kept in.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.decompositions.precision import wide
from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten


def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: Sequence[bool],
) -> object:
    if x.numel() == 0 or x.dim() == len(shape) or not x.dtype.is_floating_point:
        return NotImplemented
    rows = list(range(x.dim() - len(shape)))
    columns = list(range(x.dim() - len(shape), x.dim()))
    grad, inverse = wide(grad), wide(inverse)
    normal = (wide(x) - wide(mean)) * inverse
    to_x = to_weight = to_bias = None
    if wanted[0]:
        scaled = grad if weight is None else grad * wide(weight)
        along = (scaled * normal).mean(columns, keepdim=True)
        to_x = (scaled - scaled.mean(columns, keepdim=True) - normal * along) * inverse
        to_x = to_x.to(x.dtype)
    if wanted[1] and weight is not None:
        to_weight = (grad * normal).sum(rows).to(weight.dtype)
    if wanted[2] and bias is not None:
        to_bias = grad.sum(rows).to(bias.dtype)
    return to_x, to_weight, to_bias


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    saved_mean: Tensor | None,
    saved_inverse: Tensor | None,
    train: bool,
    eps: float,
    wanted: Sequence[bool],
) -> object:
    mean = saved_mean if train else running_mean
    if x.dim() < 2 or x.numel() == 0 or mean is None or not x.dtype.is_floating_point:
        return NotImplemented
    inverse = None if saved_inverse is None else wide(saved_inverse)
    # The running statistics count as they are when the backward runs: later calls in training
    # change them, which autograd does not notice. So nothing of them is computed before.
    again: AbstractContextManager[object] = nullcontext() if train else torch.enable_grad()
    if not train:
        assert running_var is not None
        with again:
            inverse = torch.rsqrt(wide(running_var) + eps)
    assert inverse is not None
    axes = [axis for axis in range(x.dim()) if axis != 1]

    def spread(statistic: Tensor) -> Tensor:
        return statistic.view([1, -1] + [1] * (x.dim() - 2))

    with again:
        centred = wide(x) - spread(wide(mean))
    grad = wide(grad)
    total = grad.sum(axes)
    along = (grad * centred).sum(axes)
    kept = mean.dtype if weight is None else weight.dtype
    to_x = to_weight = to_bias = None
    if wanted[0]:
        scale = inverse if weight is None else inverse * wide(weight)
        to_x = grad
        if train:
            count = x.numel() // x.shape[1]
            slope = along * inverse * inverse / count
            to_x = grad - spread(total / count) - centred * spread(slope)
        to_x = (to_x * spread(scale)).to(x.dtype)
    if wanted[1] and weight is not None:
        to_weight = (along * inverse).to(kept)
    if wanted[2]:
        to_bias = total.to(kept)
    return to_x, to_weight, to_bias


def group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    batch: int,
    channels: int,
    pixels: int,
    groups: int,
    wanted: Sequence[bool],
) -> object:
    if x.numel() == 0 or not x.dtype.is_floating_point or not x.is_contiguous():
        return NotImplemented
    sizes = (batch, groups, channels // groups, pixels)
    grad = wide(grad).reshape(sizes)
    inverse = wide(inverse).view(batch, groups, 1, 1)
    normal = (wide(x).view(sizes) - wide(mean).view(batch, groups, 1, 1)) * inverse
    kept = x.dtype if weight is None else weight.dtype
    to_x = to_weight = to_bias = None
    if wanted[0]:
        scaled = grad
        if weight is not None:
            scaled = grad * wide(weight).view(1, groups, channels // groups, 1)
        along = (scaled * normal).mean((2, 3), keepdim=True)
        slope = scaled - scaled.mean((2, 3), keepdim=True) - normal * along
        to_x = (slope * inverse).view(x.shape).to(x.dtype)
    if wanted[1]:
        to_weight = (grad * normal).sum((0, 3)).view(channels).to(kept)
    if wanted[2]:
        to_bias = grad.sum((0, 3)).view(channels).to(kept)
    return to_x, to_weight, to_bias


TABLE: dict[OpOverload, Rule] = {
    aten.native_layer_norm_backward.default: layer_norm_backward,
    aten.native_batch_norm_backward.default: batch_norm_backward,
    aten.native_group_norm_backward.default: group_norm_backward,
}
"""Gradients of normalizations, by their operators."""
