"""What programs are called with whose graphs fail after they have changed tensors.

Outside of the files of cases, because several of them share these; no case changes the class.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.declare import t


class Own:
    """What a program notes its state in."""

    def __init__(self) -> None:
        self.n = 0
        self.h: Any = None
        self.log: list[Any] = []
        self.named: dict[str, Any] = {}

    @property
    def twice(self) -> int:
        return self.n * 2

    @twice.setter
    def twice(self, value: int) -> None:
        self.n = value // 2


class Operand:
    """Adds a place to a table, by reading it after a change; a context manager too."""

    def __init__(self, own: Own, x: torch.Tensor, table: torch.Tensor) -> None:
        self.own, self.x, self.table = own, x, table

    def __add__(self, place: torch.Tensor) -> torch.Tensor:
        self.own.n += 1
        self.x.add_(1)
        y = self.table[place]
        self.own.n += 1
        return y

    def __enter__(self) -> Operand:
        self.own.log.append("entered")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.own.log.append(None if kind is None else kind.__name__)


Sets = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, Own]]


def world(grad: bool = False) -> Sets:
    """A tensor to change, a place that may be out of range, what is read there, the state."""
    return [(t(3, grad=False), torch.tensor([n]), t(4, grad=grad), Own()) for n in (1, 9, 2, 7, 0)]


def needing_gradients() -> Sets:
    """The same, with gradients of what is read."""
    return world(grad=True)
