"""Python twins of locks: those that the traced code makes, which no other thread has yet."""

from __future__ import annotations

from typing import Any

IS_TWIN = True
"""Frames of this module's code are never resumed: the real object has no such code."""


def _wait() -> None:
    """Waiting for a lock that nobody can release. It is never traced: the code breaks there."""
    raise NotImplementedError


class Lock:
    """`threading.Lock`."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: Any = True, timeout: Any = -1) -> bool:
        if self._held:
            if blocking:
                _wait()
            return False
        self._held = True
        return True

    __enter__ = acquire

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False

    def __exit__(self, *error: object) -> None:
        self.release()

    def locked(self) -> bool:
        return self._held


class RLock:
    """`threading.RLock`."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def acquire(self, blocking: Any = True, timeout: Any = -1) -> bool:
        self._count += 1
        return True

    __enter__ = acquire

    def release(self) -> None:
        if not self._count:
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1

    def __exit__(self, *error: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._count > 0
