"""Autocast and the random generators, as they are where a program runs again later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import torch

_AUTOCAST_DEVICES = ("cpu", "cuda")

Autocast: TypeAlias = "tuple[tuple[str, torch.dtype], ...]"
"""The devices for which autocast is on, each with its dtype."""


def autocast_now() -> Autocast:
    """What autocast is."""
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in _AUTOCAST_DEVICES
        if torch.is_autocast_enabled(device)
    )


def random_states() -> list[torch.Tensor]:
    """The states of all random generators."""
    found = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        found += torch.cuda.get_rng_state_all()
    return found


@contextmanager
def as_before(
    states: Sequence[torch.Tensor], autocast: Sequence[tuple[str, torch.dtype]], *, draws: bool
) -> Iterator[None]:
    """Generators in these states, and this autocast alone; ``draws`` says that the generators are
    to be afterwards as they are now."""
    now = random_states() if draws else []
    with ExitStack() as stack:
        for device in _AUTOCAST_DEVICES:
            stack.enter_context(torch.autocast(device, enabled=False))
        for device, dtype in autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        _set_states(states)
        try:
            yield
        finally:
            _set_states(now)


def _set_states(states: Sequence[torch.Tensor]) -> None:
    if states:
        torch.set_rng_state(states[0])
        for index, state in enumerate(states[1:]):
            torch.cuda.set_rng_state(state, index)
