"""Fake results of operators whose own kernels for tensors without data take sizes for numbers.

Each gives the sizes and strides that torch's kernels of the CPU give, by arithmetic of sizes alone,
or `NotImplemented`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import corresponding_complex_dtype, corresponding_real_dtype

aten = torch.ops.aten


def complex_of(real: Tensor, imaginary: Tensor) -> Any:
    """`complex` and `polar`: strides are those of other operators of two tensors."""
    if real.dtype != imaginary.dtype or not real.is_floating_point():
        return NotImplemented
    return torch.add(real, imaginary).to(corresponding_complex_dtype(real.dtype))


def unfold_copy(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    windows = x.unfold(dimension, size, step)
    return x.new_empty(windows.shape)


def narrow_copy(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    return x.new_empty(x.narrow(dim, start, length).shape)


def expand_copy(x: Tensor, size: Sequence[int], *, implicit: bool = False) -> Tensor:
    return x.new_empty(x.expand(size).shape)


def fft_of_complex(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    if not dim or not _is_by_mkl(x):
        return NotImplemented
    return _transformed(x, x.shape, _by_stride(x, dim), x.dtype)


def fft_of_real(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    if not dim or not _is_by_mkl(x):
        return NotImplemented
    sizes = list(x.shape)
    if onesided:
        sizes[dim[-1]] = sizes[dim[-1]] // 2 + 1
    order = [*_by_stride(x, dim[:-1]), dim[-1]]
    return _transformed(x, sizes, order, corresponding_complex_dtype(x.dtype))


def fft_to_real(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    if not dim or not _is_by_mkl(x):
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
    """Row-major over the transformed dimensions, the others around them in their order in `x`."""
    inner = [axis % x.dim() for axis in dim]
    outer = _by_stride(x, [axis for axis in range(x.dim()) if axis not in inner])
    strides, step = [0] * x.dim(), 1
    for axis in reversed([*outer, *inner]):
        strides[axis] = step
        step = step * sizes[axis]
    if any(size == 0 for size in sizes):
        return x.new_empty(sizes, dtype=dtype)
    return torch.empty_strided(sizes, strides, dtype=dtype, device=x.device)


def trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """A sum over products of three tensors, each with dimensions of size one put in."""
    spread = []
    for tensor, axes in ((x, expand1), (y, expand2), (z, expand3)):
        for axis in axes:
            tensor = tensor.unsqueeze(axis)
        spread.append(tensor.shape)
    sizes = torch.broadcast_shapes(*spread)  # type: ignore[no-untyped-call]  # torch's
    return x.new_empty([size for axis, size in enumerate(sizes) if axis not in sumdim])


def pinv(
    x: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> Tensor:
    return x.new_empty(x.mT.shape)


OPEN_KERNELS: dict[OpOverload, Callable[..., Any]] = {
    aten.complex.default: complex_of,
    aten.polar.default: complex_of,
    aten.unfold_copy.default: unfold_copy,
    aten.narrow_copy.default: narrow_copy,
    aten.expand_copy.default: expand_copy,
    aten._trilinear.default: trilinear,
    aten.linalg_pinv.atol_rtol_tensor: pinv,
    aten._fft_c2c.default: fft_of_complex,
    aten._fft_r2c.default: fft_of_real,
    aten._fft_c2r.default: fft_to_real,
}
"""By operator; they run under the mode."""
