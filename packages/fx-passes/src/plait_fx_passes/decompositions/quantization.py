"""The operators of `quantized_decomposed`, in which PT2E writes quantized programs, as loops.

Each computes in the dtypes and in the order of torch's own kernel, so integers are eager's:
rounding half to even, zero point, clamp. A scale or zero point in a tensor is not read as a number
first. What torch's kernels check of values (that they hold no NaN) is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.record.recorder import Rule

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32)
_WRITTEN = (torch.uint8, torch.int8, torch.int16, torch.int32)
"""Integers that loops round floats to."""


def _takes(x: Tensor, dtype: torch.dtype, low: int = 0, high: int = 0) -> bool:
    if x.dtype not in _FLOATS or dtype not in _WRITTEN:
        return False
    kept = torch.iinfo(dtype)
    return kept.min <= low and high <= kept.max


def quantize(
    x: Tensor, scale: float, zero_point: int, low: int, high: int, dtype: torch.dtype
) -> object:
    """By numbers, which are rounded to float32 as scalars are."""
    if not _takes(x, dtype, low, high):
        return NotImplemented
    rounded = torch.round(x.float() * (1.0 / scale)) + zero_point
    return torch.clamp(rounded, low, high).to(dtype)


def quantize_by_tensors(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, dtype: torch.dtype
) -> object:
    """The inverse of the scale is taken in float64, as of a Python number, and rounded then."""
    if not _takes(x, dtype, low, high):
        return NotImplemented
    inverse = (1.0 / scale.reshape([]).double()).float()
    rounded = torch.round(x.float() * inverse) + zero_point.reshape([]).float()
    return torch.clamp(rounded, low, high).to(dtype)


def quantize_between_tensors(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: Tensor, high: Tensor, dtype: torch.dtype
) -> object:
    if not _takes(x, dtype):
        return NotImplemented
    inverse = (1.0 / scale.reshape([]).double()).float()
    rounded = torch.round(x.float() * inverse) + zero_point.reshape([]).float()
    bounds = [each.reshape([]).float() for each in (low, high)]
    return torch.minimum(torch.maximum(rounded, bounds[0]), bounds[1]).to(dtype)


def dequantize(
    x: Tensor,
    scale: float,
    zero_point: int,
    low: int,
    high: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> object:
    if x.dtype is not dtype or dtype not in _INTEGERS:
        return NotImplemented
    return (x.to(out_dtype or torch.float32) - zero_point) * scale


def dequantize_by_tensors(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    low: object,
    high: object,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> object:
    """In float32 between the roundings to a narrower type, as scalars take part."""
    target = out_dtype or torch.float32
    if x.dtype is not dtype or dtype not in _INTEGERS or target not in _FLOATS:
        return NotImplemented
    centred = (x.to(target).float() - zero_point.reshape([]).float()).to(target)
    return (centred.float() * scale.reshape([]).float()).to(target)


def _along(x: Tensor, axis: int, of_channels: Tensor) -> Tensor:
    return of_channels.view([-1 if each == axis % x.dim() else 1 for each in range(x.dim())])


def quantize_channels(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> object:
    if not _takes(x, dtype, low, high) or axis >= x.dim():
        return NotImplemented
    rounded = torch.round(x.float() * (1.0 / _along(x, axis, scales)))
    return torch.clamp(rounded + _along(x, axis, zero_points), low, high).to(dtype)


def dequantize_channels(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> object:
    if x.dtype is not dtype or axis >= x.dim() or dtype not in _INTEGERS:
        return NotImplemented
    centred = x if zero_points is None else x - _along(x, axis, zero_points)
    return (centred * _along(x, axis, scales)).to(out_dtype or torch.float32)


def quantize_tokens(
    x: Tensor, scales: Tensor, zero_points: Tensor, low: int, high: int, dtype: torch.dtype
) -> object:
    if not _takes(x, dtype, low, high) or not _counts_tokens(x, scales, zero_points):
        return NotImplemented
    return x.mul(1.0 / scales).add(zero_points).round().clamp(low, high).to(dtype)


def _counts_tokens(x: Tensor, *parameters: Tensor) -> bool:
    return all(prod(x.shape[:-1]) == each.numel() for each in parameters)


def dequantize_tokens(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    low: int,
    high: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype,
) -> Tensor:
    return ((x - zero_points) * scales).to(output_dtype)


def _grouped(x: Tensor, scales: Tensor, size: int) -> int | None:
    """How many elements of a row share a scale; None where torch's kernel refuses them."""
    size = x.shape[-1] if size > x.shape[-1] and scales.shape[-1] == 1 else size
    return size if size > 1 and x.dim() == 2 and x.shape[-1] % size == 0 else None


def quantize_groups(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    low: int,
    high: int,
    dtype: torch.dtype,
    group_size: int,
) -> object:
    size = _grouped(x, scales, group_size)
    if size is None or not _takes(x, dtype):
        return NotImplemented
    groups = x.reshape(-1, size).mul(1.0 / scales.reshape(-1, 1)).add(zero_points.reshape(-1, 1))
    return groups.round().clamp(low, high).to(dtype).reshape(x.shape)


def dequantize_groups(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    low: int,
    high: int,
    dtype: torch.dtype,
    group_size: int,
    output_dtype: torch.dtype,
) -> object:
    size = _grouped(x, scales, group_size)
    if size is None:
        return NotImplemented
    zero = torch.zeros([], dtype=torch.int32, device=scales.device)
    zero = zero if zero_points is None else zero_points.reshape(-1, 1)
    groups = x.reshape(-1, size).sub(zero).mul(scales.reshape(-1, 1))
    return groups.reshape(x.shape).to(output_dtype)


def _extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """The least element, or zero where it is greater, and the greatest, or zero."""
    zero = torch.zeros([], dtype=x.dtype, device=x.device)
    return torch.minimum(x.amin(), zero), torch.maximum(x.amax(), zero)


def choose(x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> object:
    if x.dtype not in _FLOATS or not x.numel():
        return NotImplemented
    least, greatest = _extremes(x)
    scale = (greatest - least) / float(high - low)
    scale = torch.maximum(scale.float(), torch.full([1], eps, device=x.device))
    zero_point = torch.clamp(low - torch.round(least / scale).to(torch.int32), low, high)
    return scale.double(), zero_point.to(torch.int64)


def choose_symmetric(x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> object:
    if x.dtype not in _FLOATS or not x.numel():
        return NotImplemented
    least, greatest = _extremes(x)
    scale = torch.maximum(-least, greatest) / (float(high - low) / 2)
    scale = torch.maximum(scale.float(), torch.full([1], eps, device=x.device))
    middle = 128 if dtype is torch.uint8 else 0
    return scale.double(), torch.full([1], middle, dtype=torch.int64, device=x.device)


def choose_for_tokens(x: Tensor, dtype: torch.dtype) -> object:
    """In float64 and int64, as torch's fake kernel has it; its real one returns floats like `x`."""
    if dtype is not torch.int8:
        return NotImplemented
    scales = x.abs().amax(dim=-1, keepdim=True)
    scales = scales.float() if scales.dtype is torch.float16 else scales
    scales = scales.clamp(min=1e-5).div(127)
    return scales.double(), torch.zeros_like(scales, dtype=torch.int64)


def choose_asymmetric_for_tokens(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    low, high = -128, 127
    least = x.amin(-1, keepdim=True).clamp(max=0)
    greatest = x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((greatest - least) / float(high - low)).clamp(min=torch.finfo(torch.float32).eps)
    below, above = least / scale, greatest / scale
    is_above = (low + below) + (high + above) > 0
    zero_point = torch.where(is_above, low - below, high - above).clamp(low, high).round()
    return scale.double(), zero_point.to(torch.int64)


def fake_quantize_channels(
    x: Tensor, scales: Tensor, zero_points: Tensor, axis: int, low: int, high: int
) -> object:
    if x.dtype is not torch.float32 or axis >= x.dim():
        return NotImplemented
    scale = _along(x, axis, scales.float())
    zero_point = _along(x, axis, zero_points.to(torch.int32))
    rounded = torch.round(x * (1.0 / scale)) + zero_point
    return (torch.clamp(rounded, low, high) - zero_point) * scale


def convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype)


_RULES: Mapping[tuple[str, str], Rule] = {
    ("quantize_per_tensor", "default"): quantize,
    ("quantize_per_tensor", "tensor"): quantize_by_tensors,
    ("quantize_per_tensor", "tensor2"): quantize_between_tensors,
    ("dequantize_per_tensor", "default"): dequantize,
    ("dequantize_per_tensor", "tensor"): dequantize_by_tensors,
    ("dequantize_per_tensor", "tensor2"): dequantize_by_tensors,
    ("quantize_per_channel", "default"): quantize_channels,
    ("dequantize_per_channel", "default"): dequantize_channels,
    ("quantize_per_token", "default"): quantize_tokens,
    ("dequantize_per_token", "default"): dequantize_tokens,
    ("quantize_per_channel_group", "default"): quantize_groups,
    ("dequantize_per_channel_group", "default"): dequantize_groups,
    ("choose_qparams", "tensor"): choose,
    ("choose_qparams_symmetric", "tensor"): choose_symmetric,
    ("choose_qparams_per_token", "default"): choose_for_tokens,
    ("choose_qparams_per_token_asymmetric", "default"): choose_asymmetric_for_tokens,
    ("fake_quant_per_channel", "default"): fake_quantize_channels,
    ("convert_element_type", "no_fuse"): convert,
}


def registered() -> dict[OpOverload, Rule]:
    """The rules of the operators that are there: the library is registered when it is imported."""
    found = {}
    for (name, overload), rule in _RULES.items():
        packet = getattr(torch.ops.quantized_decomposed, name, None)
        op = getattr(packet, overload, None)
        if isinstance(op, OpOverload):
            found[op] = rule
    return found
