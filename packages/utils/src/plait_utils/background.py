"""Work that goes on in threads beside the program, and ends with the process."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence

from plait_utils.forks import wait_at_forks
from plait_utils.interrupts import Interrupted
from plait_utils.log import get_logger

_STOP_SECONDS = 5.0
"""How long the end of a process waits for its threads to tidy up."""

_lock = threading.Lock()
_threads: set[threading.Thread] = set()
_endings: list[int] = []
_is_registered = False


def start_in_background(work: Callable[[], object], name: str) -> threading.Thread | None:
    """Run `work` in a thread; None where none can be had, as at a process's end.

    It is to be done without harm if it is never done: what it raises is logged. When the process
    ends, `endings` tells so, and the thread gets some seconds to tidy up.
    """
    global _is_registered
    thread = threading.Thread(target=_run, args=(work,), name=name, daemon=True)
    with _lock:
        if not _is_registered:
            atexit.register(_end)
            _is_registered = True
        _threads.add(thread)
    try:
        thread.start()
    except RuntimeError:
        with _lock:
            _threads.discard(thread)
        return None
    return thread


def endings() -> Sequence[int]:
    """Not empty once the process is about to end, whenever it is looked at."""
    return _endings


def _run(work: Callable[[], object]) -> None:
    try:
        work()
    except Interrupted:
        pass
    except Exception as error:
        get_logger("background").info("work in the background failed: %s", error)
    finally:
        with _lock:
            _threads.discard(threading.current_thread())


def _end() -> None:
    _endings.append(1)
    with _lock:
        waiting = [*_threads]
    deadline = time.monotonic() + _STOP_SECONDS
    for thread in waiting:
        with contextlib.suppress(RuntimeError):
            thread.join(max(deadline - time.monotonic(), 0.0))


def _forget() -> None:
    """In a forked child, which has none of its parent's threads."""
    global _lock
    _lock = threading.Lock()
    _threads.clear()


os.register_at_fork(after_in_child=_forget)
wait_at_forks(lambda: {thread.ident for thread in [*_threads]})
