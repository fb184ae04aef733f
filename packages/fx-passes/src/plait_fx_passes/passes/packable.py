"""Which calls are faster with a weight that oneDNN has packed, by their sizes."""

from __future__ import annotations

from math import prod
from typing import cast

import torch
from torch.fx.node import Argument

from plait_fx_passes.layouts import traced_numel, traced_size

_DTYPES = frozenset({torch.float32, torch.bfloat16})

_ROWS = 8
"""Rows of a product from which on oneDNN's is faster than MKL's; fewer are bound by memory."""

_WORK = 1 << 21
"""Multiplications from which on a call is worth the way to it, which goes through Python."""


def is_available() -> bool:
    """Whether torch has oneDNN, and its use is not switched off."""
    found = torch.backends.mkldnn
    return bool(found.is_available() and found.enabled)  # type: ignore[no-untyped-call]  # torch's


def is_plain(value: torch.Tensor) -> bool:
    """Whether a tensor is of a type and on a device that packed weights are for."""
    return value.dtype in _DTYPES and value.device.type == "cpu"


def is_worth_packing(value: torch.Tensor, elements: int) -> bool:
    """Whether a product with a frozen matrix of so many elements is faster with that packed."""
    rows = traced_size(value.shape[0])
    has_work = rows >= _ROWS and rows * elements >= _WORK
    return has_work and is_plain(value) and value.is_contiguous()


def is_packable(image: torch.Tensor, weight: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether a convolution of an image, not a transposed one, is faster with a packed weight,
    where that is frozen and the image lies with channels last."""
    has_work = traced_numel(result) * prod(weight.shape[1:]) >= _WORK
    return has_work and image.dim() == 4 and is_plain(image) and is_plain(weight)


def for_both(numbers: Argument) -> list[int]:
    """One number for each of the two dimensions of an image, where one may stand for both."""
    found = list(cast("list[int]", numbers))
    return found * 2 if len(found) == 1 else found
