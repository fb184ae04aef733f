"""Elementwise operators of one tensor of floats, whose results have its sizes and type.

Torch's own kernels for tensors without data are written in Python for many of these, and cost a
millisecond. The strides follow from the tensor's (`fake_iterators`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_NUMBERS = (int, float)


def _of_one(given: Any, *numbers: Any) -> Any:
    """A tensor like the one given; NotImplemented where torch might find something else."""
    is_plain = (
        given.dtype in _FLOATS
        and not given._has_symbolic_sizes_strides
        and all(type(each) in _NUMBERS for each in numbers)
    )
    return torch.empty_like(given) if is_plain else NotImplemented


def _clamped(given: Any, min: Any = None, max: Any = None) -> Any:
    bounds = [each for each in (min, max) if each is not None]
    return _of_one(given, *bounds) if bounds else NotImplemented


_NAMES = (
    *("abs", "ceil", "cos", "erf", "erfc", "exp", "exp2", "expm1", "floor", "log", "log1p", "log2"),
    *("neg", "reciprocal", "relu", "round", "rsqrt", "sigmoid", "silu", "sin", "sqrt", "tan"),
    *("tanh", "hardtanh", "hardsigmoid", "hardswish", "leaky_relu", "clamp_min", "clamp_max"),
)
KERNELS: Mapping[str, Callable[..., Any]] = {
    **{f"aten.{name}.default": _of_one for name in _NAMES},
    "aten.clamp.default": _clamped,
    "aten.pow.Tensor_Scalar": _of_one,
}
"""By the operator's name."""
