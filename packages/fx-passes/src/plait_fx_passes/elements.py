"""What tensors hold of numbers."""

from __future__ import annotations

import torch


def held_as(number: float, dtype: torch.dtype) -> float:
    """What an element of that type is, of a number that is written to it.

    A bool is whether it is not 0, an integer its whole part, a float the nearest one. Integers
    without sign hold negative numbers as remainders.
    """
    if dtype is torch.bool:
        return bool(number)
    if not (dtype.is_floating_point or dtype.is_complex):
        whole = int(number)
        return whole if dtype.is_signed else whole % (torch.iinfo(dtype).max + 1)
    return number if dtype is torch.float64 or dtype.is_complex else _rounded(number, dtype)


def _rounded(number: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(number, dtype=dtype, device="cpu").item())
