"""How many seconds compiling may take, over all graphs of a function.

What the option `compile_seconds` allows is spent by tracing, and by the stages of each graph in the
order in which calls need them. When it is spent the stage that runs is left, a C++ compiler that
runs is killed, and the graph runs as captured, as all do that come later. With the option
`background` it is what calls wait at most, all together: a thread goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from plait_utils.forks import new_lock
from plait_utils.interrupts import limited_by


class TimeIsUp(BaseException):
    """The seconds are spent. Not an Exception: nothing in a compiler handles it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"compile_seconds={seconds:g}, which all of compiling may take, are spent")


class Budget:
    """The seconds of one compiled function.

    Args:
        seconds: how many there are; None: as many as it takes.
        traced: how many tracing has taken by now.
    """

    def __init__(self, seconds: float | None, traced: Callable[[], float]) -> None:
        self._seconds = seconds
        self._traced = traced
        self._spent = 0.0
        self._lock = new_lock()
        self._begun = threading.local()

    def left(self) -> float:
        """How many seconds are left by now; none where they are not limited."""
        if self._seconds is None:
            return 0.0
        since = getattr(self._begun, "at", None)
        running = 0.0 if since is None else time.monotonic() - since
        return self._seconds - self._traced() - self._spent - running

    def spend(self, seconds: float) -> None:
        """Note seconds that a call has waited."""
        with self._lock:
            self._spent += seconds

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Compile: TimeIsUp is raised where the seconds are spent."""
        if self._seconds is None or getattr(self._begun, "at", None) is not None:
            yield
            return
        self._begun.at = begun = time.monotonic()
        try:
            with limited_by(self._check, self.left):
                yield
        finally:
            self._begun.at = None
            self.spend(time.monotonic() - begun)

    def same(self) -> Callable[[], AbstractContextManager[None]]:
        """What limits another thread's part in the work that this one is at, by its block."""
        if self._seconds is None:
            return nullcontext
        until = time.monotonic() + self.left()
        seconds = self._seconds

        def check() -> None:
            if time.monotonic() > until:
                raise TimeIsUp(seconds)

        return lambda: limited_by(check, lambda: until - time.monotonic())

    def _check(self) -> None:
        if self._seconds is not None and self.left() <= 0:
            raise TimeIsUp(self._seconds)
