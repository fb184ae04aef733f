"""Processes that fork while a thread beside the program is at work.

That thread is not in the child, and what it holds is never given back there: who waits for it in
the child waits for good. Locks of plait's own are made here, and are free in a child. Those of
modules are Python's, which locks each module that is imported: a fork waits until no thread of
`plait_utils.background` is at that; what the program's own threads import is the program's concern.
It waits, too, while a process is started.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

_SECONDS = 20.0
"""How long a fork waits: what is imported may need what the thread that forks holds."""
_PAUSE = 0.001


def wait_at_forks(threads: Callable[[], Collection[int | None]]) -> None:
    """Have forks of this process wait while one of some threads imports.

    Args:
        threads: gives the idents of the threads; called before each fork.
    """
    held = _ImportLock(threads)
    os.register_at_fork(
        before=held.acquire, after_in_parent=held.release, after_in_child=held.release
    )


class _ImportLock:
    """Python's lock over the locks of modules, so that no thread begins to import."""

    def __init__(self, threads: Callable[[], Collection[int | None]]) -> None:
        self._threads = threads
        self._held: list[int] = []
        """The threads that have acquired it."""

    def acquire(self) -> None:
        lock = _lock_of_imports()
        if lock is None:
            return
        acquire, release = lock
        deadline = time.monotonic() + _SECONDS
        own = threading.get_ident()
        acquire()
        while not _imports([own]) and _imports(self._threads()) and time.monotonic() < deadline:
            release()
            time.sleep(_PAUSE)
            acquire()
        self._held.append(own)

    def release(self) -> None:
        lock = _lock_of_imports()
        if lock is not None and threading.get_ident() in self._held:
            self._held.remove(threading.get_ident())
            lock[1]()


def _lock_of_imports() -> tuple[Callable[[], None], Callable[[], None]] | None:
    """How to acquire and to release it; None where this Python has none."""
    try:
        import _imp
    except ImportError:
        return None
    found: Any = (getattr(_imp, "acquire_lock", None), getattr(_imp, "release_lock", None))
    return None if None in found else found


def _imports(threads: Collection[int | None]) -> bool:
    """Whether one of some threads holds the lock of a module, or waits for one."""
    bootstrap = getattr(importlib, "_bootstrap", None)
    locks = [reference() for reference in [*getattr(bootstrap, "_module_locks", {}).values()]]
    blocked = getattr(bootstrap, "_blocking_on", {})  # before Python 3.12 a dict
    owners = {getattr(lock, "owner", None) for lock in locks} - {None}
    return any(thread in owners or blocked.get(thread) for thread in threads)


# Locks.

_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """A lock that nobody holds in a forked child, whatever thread of the parent's did."""
    made = threading.Lock()
    _LOCKS.add(made)
    return made


def new_reentrant_lock() -> Any:
    """The same as an `RLock`; in the child of a fork that its thread made, that holds it on."""
    made = threading.RLock()
    _LOCKS.add(made)
    return made


def _free_locks() -> None:
    for lock in [*_LOCKS]:
        is_own = getattr(lock, "_is_owned", None)
        if is_own is None or not is_own():
            lock._at_fork_reinit()


os.register_at_fork(after_in_child=_free_locks)


# Processes.

_starting = threading.RLock()
_forking = threading.local()
_START_SECONDS = 10.0
"""How long a fork waits at most: who starts a process may wait for what the fork holds."""


def _wait_for_starts() -> None:
    _forking.holds = _starting.acquire(timeout=_START_SECONDS)


def _let_start() -> None:
    if _forking.holds:
        _starting.release()


os.register_at_fork(before=_wait_for_starts, after_in_parent=_let_start, after_in_child=_let_start)


@contextlib.contextmanager
def starting_process() -> Iterator[None]:
    """Around `subprocess.Popen`, which waits until the end of a pipe is closed that it has made: a
    child that another thread forks meanwhile has that end, too, and keeps it open."""
    with _starting:
        yield
