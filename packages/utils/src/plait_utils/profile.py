"""Phase timers and counters, passed explicitly through the stages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from plait_utils.forks import new_lock


class Profile:
    """Seconds by phase and named counts of one compilation.

    A phase inside another takes its time out of the outer one's, so the phases' seconds
    add up to the time spent in any of them. Threads may share a profile; each nests on
    its own.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._seconds: dict[str, float] = {}
        self._counters: dict[str, int] = {}
        self._open = threading.local()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to phase `name`."""
        inner_of_parent: list[float] = getattr(self._open, "inner", [])
        self._open.inner = [*inner_of_parent, 0.0]
        depth = len(inner_of_parent)
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            own = elapsed - self._open.inner[depth]
            self._open.inner = self._open.inner[:depth]
            if depth:
                self._open.inner[depth - 1] += elapsed
            with self._lock:
                self._seconds[name] = self._seconds.get(name, 0.0) + own

    def count(self, name: str, amount: int = 1) -> None:
        """Add `amount` to counter `name`."""
        with self._lock:
            self._counters[name] = self._counters.get(name, 0) + amount

    def seconds(self) -> dict[str, float]:
        """Seconds by phase, in the order in which the phases first ended."""
        with self._lock:
            return dict(self._seconds)

    def counters(self) -> dict[str, int]:
        """Counts by name."""
        with self._lock:
            return dict(self._counters)
