"""What reads the number that a small tensor of the call will hold, before each call."""

from __future__ import annotations

from typing import Any

import torch

from plait_utils import dataclass

METHODS = ("add_", "sub_", "mul_", "div_", "fill_", "zero_")
"""What changes a tensor that such a number is read from."""


@dataclass(frozen=True, slots=True)
class Place:
    """Stands for a number that differs from call to call, by its position among these."""

    position: int


@dataclass(frozen=True, slots=True)
class Change:
    """A method that changes a tensor, and what it was given."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def count(changes: tuple[Change, ...], added: float, limit: float, tensor: torch.Tensor) -> Any:
    """`read`, of a tensor to which whole numbers are added: exact while it holds a small one."""
    value: float = tensor.item()
    if -limit < value < limit and value.is_integer():
        return value + added
    return read(changes, tensor)


def read(changes: tuple[Change, ...], tensor: torch.Tensor, *numbers: Any) -> Any:
    """The number that a tensor of one element holds after some changes."""
    if not changes:
        return tensor.item()
    with torch.no_grad(), torch._C._DisableAutocast():
        copy = tensor.detach().clone()
        for change in changes:
            given = [numbers[a.position] if isinstance(a, Place) else a for a in change.args]
            getattr(copy, change.method)(*given, **change.kwargs)
    return copy.item()
