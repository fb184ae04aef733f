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
from torch._prims_common import corresponding_complex_dtype

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
}
"""By operator; they run under the mode."""
