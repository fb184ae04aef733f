"""Argument sets that need gradients, and going backward from what a program returns.

Outside of the files of cases, because several of them share these; programs under test do not
call what is here.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.declare import t

Sets = list[tuple[torch.Tensor]]


def needing_gradients() -> Sets:
    """Vectors that need gradients."""
    return [(t(3, grad=True),), (t(2, grad=True),), (t(3, grad=True, start=0.5),)]


def some_needing_gradients() -> Sets:
    """Vectors, one of which needs no gradients."""
    return [(t(3, grad=True),), (t(3),), (t(2, grad=True),)]


def go_backward(result: Any) -> None:
    """Sum a result, or the first of several, and go backward from it where it has a history."""
    first = result[0] if isinstance(result, tuple | list) else result
    if isinstance(first, torch.Tensor) and first.requires_grad:
        first.sum().backward()


def go_backward_twice(result: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The gradient of a result by an input, from whose square it goes backward once more."""
    first, x = result
    (grad,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    grad.square().sum().backward()
    return grad
