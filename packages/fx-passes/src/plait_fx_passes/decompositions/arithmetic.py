"""Compound arithmetic and reductions as sequences of simple ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.decompositions.precision import (
    of_all_numbers,
    of_integers_too,
    rounded_once,
    unrounded,
)
from plait_fx_passes.record.numbers import is_number
from plait_fx_passes.record.recorder import Rule

aten = torch.ops.aten


def rsub(x: Tensor, other: float, alpha: float = 1) -> object:
    """``other - x`` is ``-x + other``, to the last bit."""
    if not x.dtype.is_floating_point or isinstance(other, complex):
        return NotImplemented
    return -_times(x, alpha) + other


def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    return x + _times(a, value) * b


def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    return x + _times(a, value) / b


def _scales(x: Tensor, *factors: float) -> bool:
    """Whether the products are of the tensor's type: those of integers and floats are not."""
    return not any(isinstance(factor, float) for factor in factors) or (
        x.is_floating_point() or x.is_complex()
    )


def _times(x: Tensor, factor: float) -> Tensor:
    """``x * factor``; nothing for the number 1, unless only each call gives the number."""
    return x if not is_number(factor) and factor == 1 else x * factor


def lerp(x: Tensor, end: Tensor, weight: float) -> object:
    """The two formulas are exact at both ends."""
    if is_number(weight):
        return NotImplemented
    if abs(weight) < 0.5:
        return x + (end - x) * weight
    return end - (end - x) * (1 - weight)


def masked_fill(x: Tensor, mask: Tensor, value: float) -> Tensor:
    return torch.where(mask, aten.full.default([], value, dtype=x.dtype, device=x.device), x)


def masked_fill_tensor(x: Tensor, mask: Tensor, value: Tensor) -> object:
    if value.dtype != x.dtype or value.device != x.device:
        return NotImplemented
    return torch.where(mask, value, x)


def std(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    var: Tensor = aten.var.correction(x, dim, correction=correction, keepdim=keepdim)
    return var.sqrt()


def std_mean(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    var, mean = aten.var_mean.correction(x, dim, correction=correction, keepdim=keepdim)
    return var.sqrt(), mean


def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> object:
    """By ``|x| ** ord``, and the limits of it."""
    if dtype not in (None, x.dtype) or x.dtype.is_complex or x.numel() == 0:
        return NotImplemented
    axes = list(range(x.dim())) if dim is None else [axis % max(x.dim(), 1) for axis in dim]
    if not axes:
        return NotImplemented
    if ord == 2:
        return (x * x).sum(axes, keepdim).sqrt()
    if ord == 1:
        return x.abs().sum(axes, keepdim)
    if ord == math.inf:
        return x.abs().amax(axes, keepdim)
    if ord == -math.inf:
        return x.abs().amin(axes, keepdim)
    if ord == 0:
        return (x != 0).to(x.dtype).sum(axes, keepdim)
    return x.abs().pow(ord).sum(axes, keepdim).pow(1 / ord)


def logsumexp(x: Tensor, dim: Sequence[int], keepdim: bool = False) -> object:
    if x.numel() == 0 or not (x.dtype.is_floating_point or x.dtype.is_complex):
        return NotImplemented
    axes = list(dim)
    largest = (x.real if x.dtype.is_complex else x).amax(axes, keepdim=True)
    # An infinite maximum would give inf - inf.
    shift = torch.where(largest.abs() == math.inf, 0.0, largest)
    summed = torch.exp(x - shift).sum(axes, keepdim=True).log() + shift
    return summed if keepdim else summed.squeeze(tuple(axes))


def largest(x: Tensor) -> object:
    return x.amax(list(range(x.dim()))) if x.dim() and x.numel() else NotImplemented


def smallest(x: Tensor) -> object:
    return x.amin(list(range(x.dim()))) if x.dim() and x.numel() else NotImplemented


def nansum(
    x: Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> object:
    if x.dtype.is_complex:
        return NotImplemented
    known = torch.where(x != x, 0.0, x) if x.dtype.is_floating_point else x
    return aten.sum.dim_IntList(known, dim, keepdim, dtype=dtype)


def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> object:
    if not x.numel():
        return NotImplemented
    if not x.dim():
        return x.clone(), x.clone()
    axes = list(range(x.dim())) if dim is None else [dim]
    return x.amin(axes, keepdim), x.amax(axes, keepdim)


def count_nonzero(x: Tensor, dim: Sequence[int]) -> Tensor:
    counted: Tensor = aten.sum.dim_IntList((x != 0).to(torch.int64), dim)
    return counted


def count_all_nonzero(x: Tensor, dim: int | None = None) -> Tensor:
    return count_nonzero(x, [] if dim is None else [dim])


def dist(x: Tensor, other: Tensor, p: float = 2) -> Tensor:
    distance: Tensor = aten.linalg_vector_norm.default(x - other, p)
    return distance


def dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(dtype=x.dtype)


def vdot(x: Tensor, y: Tensor) -> Tensor:
    return dot(x.conj_physical(), y)


def mv(x: Tensor, vector: Tensor) -> object:
    return (x * vector).sum(-1, dtype=x.dtype) if x.numel() else NotImplemented


def addmv(
    x: Tensor, matrix: Tensor, vector: Tensor, *, beta: float = 1, alpha: float = 1
) -> object:
    if not matrix.numel() or beta == 0:  # then NaN in `x` is not to be seen
        return NotImplemented
    if not _scales(x, beta, alpha):
        return NotImplemented
    return _times(x, beta) + _times((matrix * vector).sum(-1, dtype=x.dtype), alpha)


def addr(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> object:
    if not x.dtype == a.dtype == b.dtype or not _scales(x, beta, alpha):
        return NotImplemented  # the kernel promotes numbers as tensors
    outer = _times(a, alpha).unsqueeze(-1) * b
    if not is_number(beta) and beta == 0:  # then NaN in `x` is not to be seen
        return outer
    return _times(x, beta) + outer


def trace(x: Tensor) -> Tensor:
    return x.diagonal().sum()


def entr(x: Tensor) -> Tensor:
    below = torch.where(x == 0, 0.0, torch.where(x != x, x, -math.inf))
    return torch.where(x > 0, -x * torch.log(x), below)


def degrees(x: Tensor) -> Tensor:
    return x * (180 / math.pi)


def radians(x: Tensor) -> Tensor:
    return x * (math.pi / 180)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    bent: Tensor = aten.elu.default(x, alpha, 1.0, 1.0 / alpha)
    return bent


def ldexp(x: Tensor, other: Tensor) -> Tensor:
    return x * torch.pow(2.0, other)


def nan_to_num(
    x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> object:
    if not x.dtype.is_floating_point:
        return NotImplemented
    limits = torch.finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    finite = torch.where(x != x, 0.0 if nan is None else nan, x)
    return torch.where(x == math.inf, high, torch.where(x == -math.inf, low, finite))


def power(x: Tensor, exponent: float) -> object:
    """The exponents that eager's kernel special-cases, in its formulas."""
    if not x.dtype.is_floating_point or is_number(exponent):
        return NotImplemented
    if exponent == 2:
        return x * x
    if exponent == 3:
        return x * x * x
    if exponent == 0.5:
        return x.sqrt()
    if exponent == -0.5:
        return x.rsqrt()
    if exponent == -1:
        return x.reciprocal()
    return NotImplemented


TABLE: dict[OpOverload, Rule] = {
    aten.rsub.Scalar: rsub,
    aten.addcmul.default: unrounded(addcmul),
    aten.addcdiv.default: unrounded(addcdiv),
    aten.lerp.Scalar: unrounded(lerp),
    aten.masked_fill.Scalar: masked_fill,
    aten.masked_fill.Tensor: masked_fill_tensor,
    aten.std.correction: rounded_once(std),
    aten.std_mean.correction: of_all_numbers(std_mean),
    aten.linalg_vector_norm.default: unrounded(vector_norm),
    aten.logsumexp.default: of_integers_too(logsumexp),
    aten.max.default: largest,
    aten.min.default: smallest,
    aten.nansum.default: nansum,
    aten.aminmax.default: aminmax,
    aten.count_nonzero.dim_IntList: count_nonzero,
    aten.count_nonzero.default: count_all_nonzero,
    aten.dist.default: of_all_numbers(dist),
    aten.dot.default: of_all_numbers(dot),
    aten.vdot.default: of_all_numbers(vdot),
    aten.mv.default: of_all_numbers(mv),
    aten.addmv.default: of_all_numbers(addmv),
    aten.addr.default: of_all_numbers(addr),
    aten.trace.default: of_all_numbers(trace),
    aten.special_entr.default: of_integers_too(rounded_once(entr)),
    aten.rad2deg.default: of_integers_too(rounded_once(degrees)),
    aten.deg2rad.default: of_integers_too(rounded_once(radians)),
    aten.celu.default: celu,
    aten.ldexp.Tensor: ldexp,
    aten.nan_to_num.default: nan_to_num,
    aten.pow.Tensor_Scalar: power,
}
