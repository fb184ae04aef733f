"""Calls that eager refuses for their sizes, and fake kernels take."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.record.kernels import KernelRefusal

aten = torch.ops.aten


def _scattered(view: OpOverload) -> Callable[..., object]:
    """A copy of a tensor with something else in a view of it: something of the view's sizes."""

    def rule(input: Tensor, src: Tensor, *place: object, **places: object) -> object:
        wanted, found = view(input, *place, **places).shape, src.shape
        if len(wanted) != len(found) or any(a != b for a, b in zip(wanted, found, strict=True)):
            text = "expected src to have a size equal to the slice of self."
            sizes = f" src size = {list(found)}, slice size = {list(wanted)}"
            raise KernelRefusal(RuntimeError(text + sizes))
        return NotImplemented

    return rule


def _bucketize(input: object, boundaries: Tensor, **options: object) -> object:
    if boundaries.dim() != 1:
        text = f"boundaries tensor must be 1 dimension, but got dim({boundaries.dim()})"
        raise KernelRefusal(RuntimeError(text))
    return NotImplemented


REFUSALS = MappingProxyType(
    {
        aten.slice_scatter.default: _scattered(aten.slice.Tensor),
        aten.select_scatter.default: _scattered(aten.select.int),
        aten.diagonal_scatter.default: _scattered(aten.diagonal.default),
        aten.bucketize.Tensor: _bucketize,
        aten.bucketize.Scalar: _bucketize,
    }
)
"""What looks at a call, raises if eager does, and leaves the operator as it is, by overload."""
