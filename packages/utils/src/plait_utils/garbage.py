"""Full collections of garbage, put off while something is compiled.

A full collection visits every object of the process: with torch loaded it takes tenths of a
second, and a compile makes enough objects to set off several. Young objects are still collected,
but less often: a compiler's objects stay, and looking at them every 700 takes a tenth of its time.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from plait_utils.forks import new_lock

_NEVER = 1_000_000_000
"""Collections of the middle generation before a full one: more than there ever are."""
_YOUNG = 20_000
"""Objects between two collections of the young, at least."""

Threshold = tuple[int, int, int]


def _give_back() -> None:
    """Let the C library give back what compiling has freed, which takes two milliseconds: it keeps
    up to 64 MB for itself else."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)


class _Postponed:
    """How many threads put collections off, and what the threshold was before the first."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.depth = 0
        self.before: Threshold = (0, 0, 0)
        self.meanwhile: Threshold = (0, 0, 0)

    def enter(self) -> None:
        with self.lock:
            self.depth += 1
            if self.depth == 1:
                self.before = young, middle, _ = gc.get_threshold()
                # 0 is no collection at all, as the program wants it.
                self.meanwhile = young and max(young, _YOUNG), middle, _NEVER
                gc.set_threshold(*self.meanwhile)

    def leave(self) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0 and gc.get_threshold() == self.meanwhile:
                gc.set_threshold(*self.before)  # else the program has set another: that stays
            is_last = self.depth == 0
        if is_last:
            _give_back()


_POSTPONED = _Postponed()


@contextmanager
def postponed_collections() -> Iterator[None]:
    """Put full collections off, in all threads, until the last such block is left.

    The young are collected less often. `gc.isenabled()` stays as it is, and a threshold that the
    program sets meanwhile is kept.
    """
    _POSTPONED.enter()
    try:
        yield
    finally:
        _POSTPONED.leave()


def collection_threshold() -> Threshold:
    """`gc.get_threshold()` as it is outside of `postponed_collections`."""
    found = gc.get_threshold()
    with _POSTPONED.lock:
        return _POSTPONED.before if _POSTPONED.depth and found == _POSTPONED.meanwhile else found


def collections_are_postponed() -> bool:
    """Whether any thread is within `postponed_collections`: whether something is compiled."""
    return _POSTPONED.depth > 0
