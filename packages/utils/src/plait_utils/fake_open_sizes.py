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
from torch._prims_common import corresponding_complex_dtype, suggest_memory_format

from plait_utils.fake_data_slices import copied, element, padded, part
from plait_utils.fake_open_linalg import LINALG_KERNELS
from plait_utils.fake_open_pools import fractional_max_pool3d, fractional_max_pool_gradient
from plait_utils.fake_open_views import view

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


def permute_copy(x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.new_empty(x.permute(list(dims)).shape)


def hash_tensor(x: Tensor, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> Any:
    """A reduction: over all dimensions where none is named."""
    axes = {axis % x.dim() for axis in dim} or set(range(x.dim()))
    sizes = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    if not keepdim:
        sizes = [size for axis, size in enumerate(sizes) if axis not in axes]
    return x.new_empty(sizes, dtype=torch.uint64)


def shrunk_gradient(gradient: Tensor, x: Tensor, lambd: float) -> Tensor:
    return torch.mul(gradient, x)


def gradient_of_second(gradient: Tensor, x: Tensor, *rest: object) -> Tensor:
    """Row-major, of the shape of what was given to the forward."""
    return x.new_empty(x.shape)


def resized_gradient(
    gradient: Tensor, output_size: Sequence[int], input_size: Sequence[int], *rest: object
) -> Tensor:
    """Row-major, of the shape of an image before it was resized."""
    return gradient.new_empty(input_size)


def bilinear_gradient(
    gradient: Tensor, output_size: Sequence[int], input_size: Sequence[int], *rest: object
) -> Tensor:
    """The same, with channels last where the gradient after that has them."""
    order = suggest_memory_format(gradient)
    return gradient.new_empty(input_size).to(memory_format=order)


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


def power(x: Tensor, exponent: Any) -> Any:
    """A power by a number of the call, laid out as a product with it is."""
    is_open = isinstance(exponent, torch.SymFloat)
    return torch.mul(x, exponent) if is_open else NotImplemented


def one_hot(x: Tensor, num_classes: int = -1) -> Any:
    """Row-major, however the classes lie."""
    if num_classes == -1:
        return NotImplemented
    return x.new_empty([*x.shape, num_classes])


def leaky(x: Tensor, noise: Tensor, *rest: object, **options: object) -> Tensor:
    """`rrelu`, row-major too."""
    return x.new_empty(x.shape)


OPEN_KERNELS: dict[OpOverload, Callable[..., Any]] = {
    **LINALG_KERNELS,
    **{
        getattr(aten, f"{kind}_backward").default: resized_gradient
        for kind in (
            *("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"),
            *("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d"),
            "upsample_bicubic2d",
        )
    },
    aten.upsample_bilinear2d_backward.default: bilinear_gradient,
    aten.slice.Tensor: part,
    aten.select.int: element,
    aten.copy_.default: copied,
    aten.constant_pad_nd.default: padded,
    aten.view.default: view,
    aten._unsafe_view.default: view,
    aten.fractional_max_pool3d.default: fractional_max_pool3d,
    aten.fractional_max_pool2d_backward.default: fractional_max_pool_gradient,
    aten.fractional_max_pool3d_backward.default: fractional_max_pool_gradient,
    aten.permute_copy.default: permute_copy,
    aten.hash_tensor.default: hash_tensor,
    aten.softshrink_backward.default: shrunk_gradient,
    aten.hardshrink_backward.default: shrunk_gradient,
    aten.multi_margin_loss_backward.default: gradient_of_second,
    aten.multilabel_margin_loss_backward.default: gradient_of_second,
    aten.complex.default: complex_of,
    aten.polar.default: complex_of,
    aten.unfold_copy.default: unfold_copy,
    aten.narrow_copy.default: narrow_copy,
    aten.expand_copy.default: expand_copy,
    aten._trilinear.default: trilinear,
    aten.one_hot.default: one_hot,
    aten.rrelu_with_noise.default: leaky,
    aten.pow.Tensor_Scalar: power,
    aten.linalg_pinv.atol_rtol_tensor: pinv,
}
"""By operator; they run under the mode."""
