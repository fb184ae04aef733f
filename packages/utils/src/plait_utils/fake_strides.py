"""Operators whose kernels in torch for tensors without data give other strides than the real ones.

Those kernels are written with several operators, the last of which decides the strides of the
result; the real ones lay it out by their operands, or row by row. Those here ask an operator of
the same promotion whose result is laid out in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Kernel = Callable[..., Any]


def divided(first: Any, second: Any, *, rounding_mode: str | None = "floor") -> torch.Tensor:
    """`aten.floor_divide` and `aten.div.Tensor_mode`."""
    if rounding_mode is None:
        return torch.div(first, second)
    if rounding_mode not in ("trunc", "floor"):
        raise RuntimeError(
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
            f"'{rounding_mode}'"
        )
    found = torch.mul(first, second)
    if found.is_complex():
        raise RuntimeError(f"{rounding_mode} division is not defined for complex numbers")
    return found


def heaviside(input: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`aten.heaviside`."""
    if input.dtype is not values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    if input.is_complex():
        raise RuntimeError("heaviside is not yet implemented for complex tensors.")
    return torch.maximum(input, values)


def power_of_number(base: Any, exponent: torch.Tensor) -> torch.Tensor:
    """`aten.pow.Scalar`, whose result is laid out row by row."""
    return torch.empty(
        exponent.shape, dtype=torch.result_type(base, exponent), device=exponent.device
    )


def log_sigmoid(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`aten.log_sigmoid_forward`: row by row on CPUs, where a buffer is as large as the result."""
    if input.device.type != "cpu":
        return torch.empty_like(input), input.new_empty((0,))
    return input.new_empty(input.shape), input.new_empty(input.shape)


def index_fill(input: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    """`aten.index_fill`, which fills a copy."""
    rank = max(input.dim(), 1)
    if not -rank <= dim < rank:
        told = f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}]"
        raise IndexError(f"{told}, but got {dim})")
    if index.dtype is not torch.int64:
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    if index.dim() > 1:
        raise RuntimeError("Index has to be a vector/scalar")
    if isinstance(value, torch.Tensor) and value.dim():
        raise RuntimeError("index_fill_ only supports a 0-dimensional value tensor")
    return input.clone()


KERNELS: dict[str, Kernel] = {
    **dict.fromkeys(("aten.copysign.Tensor", "aten.xlogy.Tensor"), torch.atan2),
    **dict.fromkeys(("aten.logaddexp.default", "aten.logaddexp2.default"), torch.add),
    **dict.fromkeys((f"aten.logical_{name}.default" for name in ("and", "or", "xor")), torch.eq),
    **dict.fromkeys(("aten.floor_divide.default", "aten.div.Tensor_mode"), divided),
    "aten.heaviside.default": heaviside,
    **dict.fromkeys(("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor"), index_fill),
    "aten.pow.Scalar": power_of_number,
    "aten.log_sigmoid_forward.default": log_sigmoid,
}
"""By the operator's name."""
