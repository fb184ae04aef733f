"""Tensors that are given where an operator takes a number, as a learning rate may be one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_SCALES = frozenset({"alpha", "beta", "value"})
"""Numbers that scale what an operator computes, by the names of their arguments."""


def with_stand_ins(kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of an operation on fakes with a float for each tensor that is a number.

    The operation would read the number, which a fake has not. What it gives on fakes is the same
    for all of them. None if there is no such tensor.
    """
    found = {name: 0.5 for name, value in kwargs.items() if name in _SCALES and _is_float(value)}
    return {**kwargs, **found} if found else None


def _is_float(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 0
        and value.is_floating_point()
        and value.device.type == "cpu"
        and not value.requires_grad
    )
