"""Random numbers that bodies draw: drawn again, the same, where gradients run a body again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from plait_bytecode_tracer.tensors.random_ops import STATE_SIZE


def state_now() -> torch.Tensor:
    """The state of the CPU's generator."""
    return torch.default_generator.get_state()


def draw_from(state: torch.Tensor) -> None:
    """Let what is drawn next come from this state."""
    torch.default_generator.set_state(state.clone())  # torch reads past the end of a view


def fake_state() -> torch.Tensor:
    """A state among fake tensors."""
    return torch.empty(STATE_SIZE, dtype=torch.uint8)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Leave the generator as it was."""
    before = state_now()
    try:
        yield
    finally:
        draw_from(before)
