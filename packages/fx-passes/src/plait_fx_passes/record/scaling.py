"""Operators that are given a tensor where they take a number that scales, under gradients.

Eager reads the number from the tensor, which a graph of gradients cannot: autograd's formulas
decide by values of numbers. Multiplied by the tensor instead, what is scaled has the same values,
and the same gradients, in which the tensor has no part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

Rule: TypeAlias = Callable[..., Any]

# In the order in which eager's kernels compute.
_RULES: dict[str, tuple[str, Rule]] = {
    "add": ("alpha", lambda x, y, scale: x.add(y * scale)),
    "sub": ("alpha", lambda x, y, scale: x.sub(y * scale)),
    "subtract": ("alpha", lambda x, y, scale: x.sub(y * scale)),
    "rsub": ("alpha", lambda x, y, scale: y - x * scale),
    "addcmul": ("value", lambda x, a, b, scale: x.add(a * scale * b)),
    "addcdiv": ("value", lambda x, a, b, scale: x.add(a * scale / b)),
    "add_": ("alpha", lambda x, y, scale: x.add_(y * scale)),
    "sub_": ("alpha", lambda x, y, scale: x.sub_(y * scale)),
    "subtract_": ("alpha", lambda x, y, scale: x.sub_(y * scale)),
    "addcmul_": ("value", lambda x, a, b, scale: x.add_(a * scale * b)),
    "addcdiv_": ("value", lambda x, a, b, scale: x.add_(a * scale / b)),
}
_FUNCTIONS = {getattr(torch, name): name for name in _RULES if hasattr(torch, name)}
_DTYPES = (torch.float32, torch.float64)  # others' kernels compute with a wider number


def scaling_rule(
    target: object, args: Sequence[object], kwargs: Mapping[str, object]
) -> Callable[[], Any] | None:
    """What computes a call of a function, or of the method of that name, that is scaled by the
    element of a tensor; None for other calls."""
    name = target if isinstance(target, str) else _FUNCTIONS.get(target)
    if name not in _RULES:
        return None
    keyword, rule = _RULES[name]
    scale = kwargs.get(keyword)
    if len(kwargs) != 1 or not isinstance(scale, torch.Tensor) or not scale.is_floating_point():
        return None
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    dtype = tensors[0].dtype if tensors else None
    if len(tensors) < len(args) or len(args) != (2 if keyword == "alpha" else 3):
        return None
    if dtype not in _DTYPES or any(each.dtype is not dtype for each in tensors) or scale.dim():
        return None
    return lambda: rule(*args, scale.detach().to(tensors[0].device, dtype))
