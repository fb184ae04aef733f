"""Fake results of pooling with symbolic sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fractional_max_pool3d(
    x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor
) -> tuple[Tensor, Tensor]:
    """The largest of each window, row by row, and where it lies."""
    for extent, window, count in zip(x.shape[-3:], kernel_size, output_size, strict=True):
        torch._check(  # type: ignore[no-untyped-call]  # torch's
            count + window - 1 <= extent,
            lambda: "fractional_max_pool3d: the kernel is too large for what it is moved over",
        )
    sizes = [*x.shape[:-3], *output_size]
    return x.new_empty(sizes), x.new_empty(sizes, dtype=torch.int64)


def fractional_max_pool_gradient(gradient: Tensor, x: Tensor, *rest: object) -> Tensor:
    return x.new_empty(x.shape)
