"""Functions of torch that compute with sizes in C++, written in Python for symbolic sizes.

Torch's own are made of other operators and ask for sizes as numbers, which a tensor with symbolic
sizes answers by being of that size alone. Those here call the same operators in the same order, and
give `NotImplemented` for what torch's refuse and for arguments that they do not know.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import matmul as torch_matmul
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from plait_utils.data_sizes import data_symbols
from plait_utils.open_bits import BITS
from plait_utils.open_creation import linspace, logspace, one_hot
from plait_utils.open_differences import gradient
from plait_utils.open_images import interpolate, smooth_bicubic, smooth_bilinear
from plait_utils.open_joins import block_diag
from plait_utils.open_pools import (
    adaptive_max_pool2d,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices,
)
from plait_utils.open_products import bilinear, kron, multi_dot
from plait_utils.open_recurrent import lstm
from plait_utils.open_scans import cumprod, vander
from plait_utils.open_windows import stft


def open_call(kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a node of a torch-level graph gives, by its function here.

    Args:
        kind: the node's `op`.

    Returns:
        `NotImplemented` where it has none, or nothing that it is given has symbolic sizes.
    """
    function = (_METHODS if kind == "call_method" else _FUNCTIONS).get(target)
    if function is None or not any(map(_is_symbolic, tree_leaves([list(args), dict(kwargs)]))):
        return NotImplemented
    try:
        _signature(function).bind(*args, **kwargs)
    except TypeError:
        return NotImplemented
    return function(*args, **kwargs)


def _is_symbolic(value: object) -> bool:
    if isinstance(value, Tensor):
        return bool(value._has_symbolic_sizes_strides)
    return isinstance(value, torch.SymInt | torch.SymFloat)


@cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Any:
    """`torch.masked_scatter`, whose kernel is given tensors of one shape."""
    same = torch.broadcast_tensors(input, mask)  # type: ignore[no-untyped-call]  # torch's
    return torch.ops.aten.masked_scatter(*same, source)


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Any:
    """`torch.take_along_dim`: a gather of what is spread over the other dimensions."""
    if indices.dtype is not torch.int64:
        return NotImplemented
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    if input.dim() != indices.dim() or not -input.dim() <= dim < input.dim():
        return NotImplemented
    axis = dim % input.dim()
    places, elements = list(indices.shape), list(input.shape)
    along, count = places[axis], elements[axis]
    places[axis] = elements[axis] = 1
    spread = list(torch.broadcast_shapes(places, elements))  # type: ignore[no-untyped-call]  # torch's
    sizes = [[*spread[:axis], size, *spread[axis + 1 :]] for size in (count, along)]
    return input.expand(sizes[0]).gather(axis, indices.expand(sizes[1]))


def sgn(input: Tensor) -> Any:
    """`torch.sgn`, which for real numbers is `sign`: its gradient asks for sizes as numbers."""
    return NotImplemented if input.is_complex() else torch.sign(input)


def matmul(input: Tensor, other: Tensor) -> Any:
    """`torch.matmul`, as torch itself has it in Python."""
    return torch_matmul(input, other)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """`linear`, which without a bias is such a product, and with one not where sizes are known."""
    if bias is None:
        return torch_matmul(input, weight.t())
    if weight.dim() != 2 or bias.dtype is not weight.dtype or not data_symbols(input):
        return NotImplemented
    product = torch_matmul(input, weight.t())
    return product + bias.to(product.dtype)  # autocast rounds the product


def narrow(input: Tensor, dim: int, start: Any, length: Any) -> Any:
    """`torch.narrow` at places that depend on data: torch asks on which side of zero they are."""
    if not data_symbols([start, length]) or isinstance(start, Tensor) or not input.dim():
        return NotImplemented
    return torch.ops.aten.slice(input, dim, start, start + length)


_PRODUCTS: Mapping[Any, Callable[..., Any]] = (
    {torch.matmul: matmul, operator.matmul: matmul, functional.linear: linear}
    if torch.__version__ < "2.13"
    else {}
)
"""Before torch 2.13 products of batches ask for their sizes as numbers."""

_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    int: torch.sym_int,
    float: torch.sym_float,
    functional.interpolate: interpolate,
    functional.bilinear: bilinear,
    functional.adaptive_max_pool2d: adaptive_max_pool2d,
    getattr(functional, "_adaptive_max_pool2d"): adaptive_max_pool2d,  # noqa: B009  # not listed
    functional.adaptive_max_pool2d_with_indices: adaptive_max_pool2d_with_indices,
    functional.adaptive_max_pool3d: adaptive_max_pool3d,
    getattr(functional, "_adaptive_max_pool3d"): adaptive_max_pool3d,  # noqa: B009  # not listed
    functional.adaptive_max_pool3d_with_indices: adaptive_max_pool3d_with_indices,
    torch.ops.aten._upsample_bilinear2d_aa: smooth_bilinear,
    torch.ops.aten._upsample_bilinear2d_aa.vec: smooth_bilinear,
    torch.ops.aten._upsample_bicubic2d_aa: smooth_bicubic,
    torch.ops.aten._upsample_bicubic2d_aa.vec: smooth_bicubic,
    torch.lstm: lstm,
    torch.block_diag: block_diag,
    torch.cumprod: cumprod,
    torch.stft: stft,
    torch.sgn: sgn,
    torch.kron: kron,
    torch.gradient: gradient,
    torch.linalg.multi_dot: multi_dot,
    torch.linalg.vander: vander,
    torch.masked_scatter: masked_scatter,
    torch.take_along_dim: take_along_dim,
    torch.narrow: narrow,
    functional.one_hot: one_hot,
    torch.linspace: linspace,
    torch.logspace: logspace,
    **BITS,
    **_PRODUCTS,
}

_METHODS: Mapping[Any, Callable[..., Any]] = {
    "sgn": sgn,
    "cumprod": cumprod,
    "stft": stft,
    "kron": kron,
    "masked_scatter": masked_scatter,
    "narrow": narrow,
    "take_along_dim": take_along_dim,
    **({"matmul": matmul, "__matmul__": matmul} if _PRODUCTS else {}),
}
