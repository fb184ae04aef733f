"""Functions that make as many elements as a symbolic int says, whose value torch asks for."""

from __future__ import annotations

from typing import Any

import torch
from torch import SymInt, Tensor

_NUMBERS = (int, float, SymInt, torch.SymFloat)
_FLOATS = (torch.float32, torch.float64)


def one_hot(input: Tensor, num_classes: Any = -1) -> Any:
    """`torch.nn.functional.one_hot`, as torch makes it, which checks the classes before."""
    if input.dtype is not torch.int64 or type(num_classes) is not SymInt:
        return NotImplemented
    torch._check(num_classes > 0)  # type: ignore[no-untyped-call]  # torch's
    zeros = torch.zeros([*input.shape, num_classes], dtype=torch.int64, device=input.device)
    return zeros.scatter(-1, input.unsqueeze(-1), 1)


def linspace(
    start: Any,
    end: Any,
    steps: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """`torch.linspace` of floats: from both ends to the middle, so that both are met."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    is_plain = isinstance(start, _NUMBERS) and isinstance(end, _NUMBERS) and not requires_grad
    if type(steps) is not SymInt or dtype not in _FLOATS or not is_plain:
        return NotImplemented
    torch._check(steps >= 0)  # type: ignore[no-untyped-call]  # torch's
    count: Any = steps
    places = torch.arange(count, device=device)
    step = torch.full((), end - start, dtype=dtype, device=device) / (count - 1)
    from_start = start + step * places
    from_end = end - step * (count - 1 - places)
    return torch.where(places < count // 2, from_start, from_end)


def logspace(
    start: Any,
    end: Any,
    steps: Any,
    base: Any = 10.0,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """`torch.logspace` of floats."""
    if not isinstance(base, int | float):
        return NotImplemented
    exponents = linspace(start, end, steps, dtype=dtype, device=device, requires_grad=requires_grad)
    return exponents if exponents is NotImplemented else torch.pow(base, exponents)
