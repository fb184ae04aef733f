"""Fourier transforms of tensors without data, laid out as those that MKL computes on a CPU.

What torch's own kernels tell of them has changed with its versions, and takes sizes for numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import corresponding_complex_dtype, corresponding_real_dtype


def fft_of_complex(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    if not dim or not x.is_complex() or not _is_by_mkl(x):
        return NotImplemented
    return _transformed(x, x.shape, _by_stride(x, dim), x.dtype)


def fft_of_real(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    if not dim or not x.is_floating_point() or not _is_by_mkl(x):
        return NotImplemented
    sizes = list(x.shape)
    if onesided:
        sizes[dim[-1]] = sizes[dim[-1]] // 2 + 1
    order = [*_by_stride(x, dim[:-1]), dim[-1]]
    return _transformed(x, sizes, order, corresponding_complex_dtype(x.dtype))


def fft_to_real(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    if not dim or not x.is_complex() or not _is_by_mkl(x):
        return NotImplemented
    if len(dim) > 1:
        x = _transformed(x, x.shape, _by_stride(x, dim[:-1]), x.dtype)
    sizes = list(x.shape)
    sizes[dim[-1]] = last_dim_size
    return _transformed(x, sizes, dim[-1:], corresponding_real_dtype(x.dtype))


def _is_by_mkl(x: Tensor) -> bool:
    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]  # torch's
    return x.device.type == "cpu" and bool(has_mkl)


def _by_stride(x: Tensor, dim: Sequence[int]) -> list[int]:
    strides = x.stride()
    return sorted(dim, key=lambda axis: strides[axis], reverse=True)


def _transformed(x: Tensor, sizes: Sequence[int], dim: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Row-major over the transformed dimensions, the others around them in the order of strides."""
    inner = [axis % x.dim() for axis in dim]
    strides, step = [0] * x.dim(), 1
    for axis in reversed([*_by_stride(x, _parted(x.dim(), inner)), *inner]):
        strides[axis] = step
        step = step * sizes[axis]
    if any(size == 0 for size in sizes):
        return x.new_empty(sizes, dtype=dtype)
    return torch.empty_strided(sizes, strides, dtype=dtype, device=x.device)


def _parted(rank: int, inner: Sequence[int]) -> list[int]:
    """The dimensions that are not transformed, as `std::partition` leaves them: it tells which of
    equal strides comes first, as those of expanded dimensions are."""
    axes = list(range(rank))
    first, last = 0, rank
    while True:
        while first < last and axes[first] not in inner:
            first += 1
        while first < last and axes[last - 1] in inner:
            last -= 1
        if first == last:
            return axes[:first]
        axes[first], axes[last - 1] = axes[last - 1], axes[first]


KERNELS: dict[str, Callable[..., Any]] = {
    "aten._fft_c2c.default": fft_of_complex,
    "aten._fft_r2c.default": fft_of_real,
    "aten._fft_c2r.default": fft_to_real,
}
"""By the operator's name; `NotImplemented` leaves a call to torch's own kernel."""
