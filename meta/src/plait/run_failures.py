"""What is known of calls whose compiled program failed, and that ran eagerly."""

from __future__ import annotations

from plait_utils import get_logger
from plait_utils.forks import new_lock

_NO_MEMORY = "can't allocate memory"
"""What torch's RuntimeError of an allocation on the CPU says."""


class RunFailures:
    """Of one graph, for its report; the first failure of a kind is a warning.

    Args:
        name: of the graph.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        """How many calls ran eagerly since their program failed."""
        self.repeated = 0
        """How many calls Python made anew since their program raised, as eager may have, too."""
        self.reason: str | None = None
        """What the last of them was told."""
        self._told: set[str] = set()
        self._lock = new_lock()

    def __str__(self) -> str:
        told = []
        if self.count:
            told.append(f"the program failed in {_calls(self.count)}, which ran eagerly")
        if self.repeated:
            told.append(f"the program raised in {_calls(self.repeated)}, which Python made anew")
        return f"{'; '.join(told)}: {self.reason}"

    def repeat(self, error: BaseException) -> None:
        """Note that a call is made anew after this error, which may be the program's own."""
        with self._lock:
            self.repeated += 1
            self.reason = _said(error)

    def add(self, error: BaseException) -> None:
        """Note that a call ran eagerly after this error."""
        kind = type(error).__name__
        with self._lock:
            self.count += 1
            self.reason = _said(error)
            is_known = kind in self._told
            self._told.add(kind)
        why = "has run out of memory" if is_out_of_memory(error) else "failed, which is a bug"
        logger = get_logger("compile")
        (logger.info if is_known else logger.warning)(
            "the compiled program of %s %s, and the call ran eagerly: %s",
            *(self.name, why, _said(error)),
        )


def _calls(number: int) -> str:
    return "1 call" if number == 1 else f"{number} calls"


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was no memory for what a program needs."""
    import torch

    kinds = MemoryError, torch.OutOfMemoryError
    return isinstance(error, kinds) or _NO_MEMORY in str(error)
