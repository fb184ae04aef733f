"""Fake views with symbolic sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import is_contiguous_or_false

from plait_utils.data_sizes import data_symbols


def view(x: Tensor, size: Sequence[int]) -> Any:
    """A view of what lies row by row, in the sizes that are asked for.

    torch's own finds them by splitting and merging dimensions, and asks for more; not where sizes
    depend on data.
    """
    if not x.dim() or not size or 0 in _numbers([*x.shape, *size]):
        return NotImplemented
    if any(data_symbols(each) for each in (*x.shape, *size)) or not is_contiguous_or_false(x):
        return NotImplemented
    sizes = list(size)
    unknown = [place for place, each in enumerate(sizes) if isinstance(each, int) and each == -1]
    if len(unknown) > 1:
        return NotImplemented
    for place in unknown:
        rest = math.prod(sizes[:place] + sizes[place + 1 :])
        if rest == 0:
            return NotImplemented
        torch._check(x.numel() % rest == 0, lambda: _refusal(x, size))  # type: ignore[no-untyped-call]  # torch's
        sizes[place] = x.numel() // rest
    if not unknown:
        torch._check(x.numel() == math.prod(sizes), lambda: _refusal(x, size))  # type: ignore[no-untyped-call]  # torch's
    steps = [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]
    return x.as_strided(sizes, steps)


def _numbers(sizes: Sequence[Any]) -> list[int]:
    """Those that are no symbols: to compare a symbol would be to ask for it."""
    return [each for each in sizes if isinstance(each, int)]


def _refusal(x: Tensor, size: Sequence[int]) -> str:
    return f"shape '{list(size)}' is invalid for input of size {x.numel()}"
