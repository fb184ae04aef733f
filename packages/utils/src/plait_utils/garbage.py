"""Full collections of garbage, put off while something is compiled.

A full collection visits every object of the process: with torch loaded it takes tenths of a
second, and a compile makes enough objects to set off several. Young objects are still collected,
but less often: a compiler's objects stay, and looking at them every 700 takes a tenth of its time.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
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
        self.own = threading.local()
        """Has the `depth` of this thread, of all."""
        self.before: Threshold = (0, 0, 0)
        self.meanwhile: Threshold = (0, 0, 0)

    def enter(self) -> None:
        with self.lock:
            self.depth += 1
            self.own.depth = self._own_depth() + 1
            if self.depth == 1:
                self.before = young, middle, _ = gc.get_threshold()
                # 0 is no collection at all, as the program wants it.
                self.meanwhile = young and max(young, _YOUNG), middle, _NEVER
                gc.set_threshold(*self.meanwhile)

    def leave(self) -> None:
        with self.lock:
            self.depth -= 1
            self.own.depth -= 1
            is_last = self.depth == 0
            if is_last:
                self._collect_again()
        if is_last:
            _give_back()

    def leave_alone(self) -> None:
        """In the child of a fork: of the threads that put collections off it has at most one."""
        was, self.depth = self.depth, self._own_depth()
        if was and not self.depth:
            self._collect_again()

    def _own_depth(self) -> int:
        return getattr(self.own, "depth", 0)

    def _collect_again(self) -> None:
        if gc.get_threshold() == self.meanwhile:
            gc.set_threshold(*self.before)  # else the program has set another: that stays


_POSTPONED = _Postponed()
os.register_at_fork(after_in_child=_POSTPONED.leave_alone)


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
