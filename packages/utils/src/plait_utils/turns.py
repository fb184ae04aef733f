"""Tasks that one thread of the process does beside the program, one after the other.

Like all threads that `plait_utils.background` starts, it ends with the process: a task that is not
done then is never done. A forked child has none of its parent's threads, so what had not ended
there can be started anew.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable

from plait_utils.background import endings, start_in_background
from plait_utils.interrupts import Interrupted, limited_by

_lock = threading.Lock()
_waiting: deque[Task] = deque()
_worker: threading.Thread | None = None


class Task:
    """Work that is done once, in its turn.

    Args:
        work: what is done. It handles its own errors: what it raises is kept in `error`. It may be
            left, by what is no Exception, where `plait_utils.interrupts.stop_if_interrupted` is
            called, when the process ends.
        forked: called in a forked child before the work can begin anew there, where a thread of
            the parent's was at it: what it had locked stays locked.
    """

    def __init__(
        self, work: Callable[[], object], forked: Callable[[], object] | None = None
    ) -> None:
        self._work = work
        self._forked = forked
        self._ended = threading.Event()
        self._is_begun = False
        self.error: BaseException | None = None
        """What the work has raised."""
        with _lock:
            _all.add(self)

    @property
    def has_ended(self) -> bool:
        """Whether the work is done, or has failed."""
        return self._ended.is_set()

    def start(self) -> None:
        """Have the work done in its turn, if that was not asked for yet and a thread can be had."""
        global _worker
        if self._is_begun:
            return
        with _lock:
            if self._is_begun or endings():
                return
            self._is_begun = True
            _waiting.append(self)
            if _worker is not None:
                return
            _worker = threading.current_thread()  # a stand-in, until the worker has begun
        started = start_in_background(_work_off, "plait-compile")
        with _lock:
            if started is None:
                _worker = None
                for each in _waiting:
                    each._is_begun = False
                _waiting.clear()

    def wait(self, seconds: float | None = None) -> bool:
        """Until the work has ended, or for so many seconds; whether it has."""
        return self._ended.wait(seconds)

    def run(self) -> None:
        """Do the work. For the thread whose turn it is."""
        try:
            self._work()
        except Exception as error:
            self.error = error
        self._ended.set()

    def begin_anew(self) -> None:
        """In a forked child, where the parent's thread is not."""
        if self._ended.is_set():
            return
        self._ended = threading.Event()
        if self._is_begun and self._forked is not None:
            self._forked()
        self._is_begun = False


_all: weakref.WeakSet[Task] = weakref.WeakSet()


def _work_off() -> None:
    """Do what waits, until nothing does or the process ends."""
    global _worker
    with limited_by(_stop_at_end):
        while True:
            with _lock:
                _worker = threading.current_thread()
                if not _waiting or endings():
                    _worker = None
                    return
                task = _waiting.popleft()
            task.run()


def _stop_at_end() -> None:
    if endings():
        raise Interrupted


def _forget() -> None:
    """In a forked child."""
    global _lock, _worker
    _lock, _worker = threading.Lock(), None
    _waiting.clear()
    for task in list(_all):
        task.begin_anew()


os.register_at_fork(after_in_child=_forget)
