"""The operators that autograd calls, as the arithmetic that they do: so it fuses.

Formulas are those of eager's kernels; second derivatives never come from here, since a program is
differentiated twice by running it again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.decompositions.precision import rounded_once
from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten

_MEAN, _SUM = 1, 2
"""torch's numbers of reductions of a loss; 0 is none."""


def threshold_backward(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    return torch.where(x <= threshold, 0.0, grad)


def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        below = (torch.erf(x * math.sqrt(0.5)) + 1) * 0.5
        density = torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
        return grad * (below + x * density)
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    bent = torch.tanh((x + x * x * x * cubic) * scale)
    slope = (x * x * (3 * cubic) + 1) * scale
    return grad * ((bent + 1) * 0.5 + x * 0.5 * (1 - bent * bent) * slope)


def mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    bent = torch.tanh(torch.nn.functional.softplus(x))
    return grad * (bent + x * torch.sigmoid(x) * (1 - bent * bent))


def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return grad * gate * (x * (1 - gate) + 1)


def sigmoid_backward(grad: Tensor, y: Tensor) -> Tensor:
    return grad * (1 - y) * y


def tanh_backward(grad: Tensor, y: Tensor) -> Tensor:
    return grad * (1 - y * y)


def leaky_relu_backward(grad: Tensor, x: Tensor, slope: float, is_result: bool) -> Tensor:
    return torch.where(x > 0, grad, grad * slope)


def softmax_backward(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> object:
    if dtype != grad.dtype or not y.dim():
        return NotImplemented
    return (grad - (grad * y).sum(dim, keepdim=True)) * y


def log_softmax_backward(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> object:
    if dtype != grad.dtype or not y.dim():
        return NotImplemented
    return grad - torch.exp(y) * grad.sum(dim, keepdim=True)


def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> object:
    """What is not a row's target, or is in an ignored row, gets nothing."""
    if x.dim() != 2 or weight is not None:
        return NotImplemented
    if reduction == _MEAN:
        grad = grad / total_weight
    each = grad.unsqueeze(1) if grad.dim() else grad
    places = torch.arange(x.shape[1], device=x.device)
    rows = target.unsqueeze(1)
    return torch.where((rows == places) & (rows != ignore_index), -each, 0.0)


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> object:
    """The bias's gradient is a sum, which runs together with what makes or reads the images."""
    if not wanted[2] or x.dim() < 3 or grad.numel() == 0:
        return NotImplemented
    to_x = to_weight = None
    if wanted[0] or wanted[1]:
        to_x, to_weight, _ = aten.convolution_backward.default(
            grad,
            x,
            weight,
            None,
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups,
            [wanted[0], wanted[1], False],
        )
    return to_x, to_weight, grad.sum([axis for axis in range(grad.dim()) if axis != 1])


def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> object:
    """What the operator calls, with the bag of each index, which some kernels do not tell."""
    if sparse:
        return NotImplemented
    count = indices.shape[0]
    if count and not offset2bag.shape[0]:
        begun = torch.zeros(count + 1, dtype=offsets.dtype, device=offsets.device)
        begun = begun.index_add(0, offsets, torch.ones_like(offsets))
        offset2bag = begun[:count].cumsum(0, dtype=offsets.dtype) - 1
    return aten._embedding_bag_dense_backward.default(
        *(grad, indices, offset2bag, bag_size, maximum_indices, num_weights),
        *(scale_grad_by_freq, mode, per_sample_weights, padding_idx),
    )


TABLE: dict[OpOverload, Rule] = {
    op: rounded_once(rule)
    for op, rule in (
        (aten.threshold_backward.default, threshold_backward),
        (aten.gelu_backward.default, gelu_backward),
        (aten.silu_backward.default, silu_backward),
        (aten.mish_backward.default, mish_backward),
        (aten.sigmoid_backward.default, sigmoid_backward),
        (aten.tanh_backward.default, tanh_backward),
        (aten.leaky_relu_backward.default, leaky_relu_backward),
        (aten._softmax_backward_data.default, softmax_backward),
        (aten._log_softmax_backward_data.default, log_softmax_backward),
        (aten.nll_loss_backward.default, nll_loss_backward),
    )
} | {
    aten.convolution_backward.default: convolution_backward,
    aten._embedding_bag_backward.default: embedding_bag_backward,
}
