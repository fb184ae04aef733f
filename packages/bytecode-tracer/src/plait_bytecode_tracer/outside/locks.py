"""Locks of the caller's that a traced call takes.

The guards read what a lock protects, and the effects change it, so a specialisation that
takes locks holds all of them from before its guards are checked until its effects have
happened. It never waits for one: where another thread holds a lock, the call runs as plain
Python, which waits where the program does.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_bytecode_tracer.failing import Failed

LOCKS: tuple[type, ...] = (_thread.LockType, _thread.RLock)
"""The classes of `threading.Lock()` and `threading.RLock()`."""


class Lock(Protocol):
    """What a specialisation needs of a lock."""

    def acquire(self, blocking: bool, /) -> bool: ...

    def release(self) -> None: ...


@dataclass(slots=True)
class Locks:
    """The locks that a trace has taken."""

    taken: dict[int, Lock] = field(default_factory=dict)
    """All, by their ids, in the order in which they were taken first."""
    depths: dict[int, int] = field(default_factory=dict)
    """How often each is held now."""

    @property
    def is_held(self) -> bool:
        """Whether one has not been released again."""
        return any(self.depths.values())


class GraphFailedError(Exception):
    """The graph of a call failed, which may run as plain Python once its locks are free."""

    def __init__(self, error: BaseException, values: tuple[Any, ...]) -> None:
        super().__init__(error)
        self.error = error
        self.values_of_call = values


def fails_later(error: BaseException, *values: Any) -> Any:
    """What a graph that fails under locks calls."""
    raise GraphFailedError(error, values)


def holding(
    run: Callable[..., Any], locks: tuple[Lock, ...], failed: Failed | None, miss: object
) -> Callable[..., Any]:
    """A specialisation that holds locks while it runs; a miss where one is not free."""

    def run_holding(*values: Any) -> Any:
        held: list[Lock] = []
        try:
            for lock in locks:
                if not lock.acquire(False):
                    return miss
                held.append(lock)
            return run(*values)
        except GraphFailedError as caught:
            again, error = caught.values_of_call, caught.error
        finally:
            for lock in reversed(held):
                lock.release()
        assert failed is not None
        return failed(error, *again)

    return run_holding
