"""Modules for hooks to be registered on, and what they are called with.

Outside of the files of cases, because several of them share these; no case changes the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from conformance.declare import t

Sets = list[tuple[torch.Tensor]]
Hook = Callable[..., Any]


def needing_gradients() -> Sets:
    """Matrices that need gradients."""
    return [(t(2, 3, grad=True),), (t(4, 3, grad=True),), (t(2, 3, grad=True, start=0.5),)]


def without_gradients() -> Sets:
    """The same that need none."""
    return [(t(2, 3),), (t(4, 3),), (t(2, 3, start=0.5),)]


def linear(seed: int = 0) -> nn.Linear:
    """A layer whose weights are known."""
    made = nn.Linear(3, 3)
    with torch.no_grad():
        made.weight.copy_(t(3, 3))
        made.bias.copy_(t(3, start=seed))
    return made


class Scaled(nn.Module):
    """A layer with a factor, which may be called in several ways."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.inner = linear()
        self.factor = factor
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor, by: Any = None, *, bias: float = 0.0) -> torch.Tensor:
        found: torch.Tensor = self.inner(x).tanh() * self.factor
        return found + bias if by is None else found * by


class Net(nn.Module):
    """A module with hooks between two layers."""

    def __init__(self, hooked: nn.Module) -> None:
        super().__init__()
        self.first, self.hooked, self.last = linear(1), hooked, linear(2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.hooked(self.first(x)))


def net_with(
    *, full: Iterable[Hook] = (), pre: Iterable[Hook] = (), hooked: nn.Module | None = None
) -> Net:
    """A net with backward hooks on its second module."""
    made = Net(hooked or Scaled())
    for hook in pre:
        made.hooked.register_full_backward_pre_hook(hook)
    for hook in full:
        made.hooked.register_full_backward_hook(hook)
    return made
