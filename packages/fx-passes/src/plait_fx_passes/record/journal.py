"""What calls of operators of a user's that write have done while a program runs.

Where a later one raises, eager has kept what the earlier ones wrote, and none may run again.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch._ops import OpOverload

from plait_utils import dataclass

_MOST_BYTES = 2**26
"""How much is kept of what calls wrote; for programs that write more, nothing is known."""


@dataclass(frozen=True, slots=True)
class Written:
    """One call: its operator, its results, and what it has written to the tensors that it writes
    to, in the order of its arguments."""

    operator: OpOverload
    results: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


class Journal:
    """The calls so far, in order; ``calls`` is None once they have written too much to keep."""

    def __init__(self) -> None:
        self.calls: list[Written] | None = []
        self._bytes = 0

    def add(
        self,
        operator: OpOverload,
        results: tuple[torch.Tensor, ...],
        values: tuple[torch.Tensor, ...],
        inputs: Collection[int] = (),
    ) -> None:
        """Note a call; what it gives is copied, since the program may write over it, but for the
        values that are ``inputs``, which hold what they are to hold."""
        copied = [*results, *(each for n, each in enumerate(values) if n not in inputs)]
        self._bytes += sum(each.numel() * each.itemsize for each in copied)
        if self._bytes > _MOST_BYTES:
            self.calls = None
        if self.calls is not None:
            given = tuple(e if n in inputs else e.clone() for n, e in enumerate(values))
            self.calls.append(Written(operator, tuple(each.clone() for each in results), given))


class _Here(threading.local):
    journal: Journal | None = None


_here = _Here()


@contextmanager
def journaled(journal: Journal | None) -> Iterator[Journal | None]:
    """Note the calls on this thread in a journal, or in none; gives the one that was noted in."""
    before, _here.journal = _here.journal, journal
    try:
        yield before
    finally:
        _here.journal = before
