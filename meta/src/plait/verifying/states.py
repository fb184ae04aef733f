"""The random generators' states, so that a program that runs twice draws the same."""

from __future__ import annotations

import torch


class RandomStates:
    """The states of torch's generators when it was made."""

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        initialized = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # untyped there
        self._cuda = torch.cuda.get_rng_state_all() if initialized else []

    def restore(self) -> None:
        """Set the generators back."""
        torch.set_rng_state(self._cpu)
        for index, state in enumerate(self._cuda):
            torch.cuda.set_rng_state(state, index)

    def have_moved(self) -> bool:
        """Whether numbers were drawn since."""
        if not torch.equal(self._cpu, torch.get_rng_state()):
            return True
        return any(
            not torch.equal(state, torch.cuda.get_rng_state(index))
            for index, state in enumerate(self._cuda)
        )
