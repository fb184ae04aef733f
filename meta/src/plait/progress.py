"""One line on the terminal while something compiles for long.

It says which graph is at which stage, how many units of C++ are built, and since when, begins after
two seconds and is wiped away at the end. Only where standard error is a terminal: no file, pipe or
notebook gets anything. `PLAIT_PROGRESS=0` switches it off.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from plait_utils.background import endings, start_in_background
from plait_utils.forks import new_lock

_AFTER_SECONDS = 2.0
_EVERY_SECONDS = 0.1
_WIPE = "\r\x1b[2K"


class Progress:
    """How far the compilation of one graph is.

    Args:
        name: the graph's.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.since = time.monotonic()
        self.stage = "begins"
        self.units: tuple[int, int] | None = None
        """How many units of C++ are built, of how many."""

    def at(self, stage: str) -> None:
        """The graph has come to a stage."""
        self.stage, self.units = stage, None

    def built(self, done: int, count: int) -> None:
        """So many units of C++ are built."""
        self.units = done, count

    def __str__(self) -> str:
        units = "" if self.units is None else f" {self.units[0]}/{self.units[1]}"
        return f"plait: {self.name}: {self.stage}{units}, {time.monotonic() - self.since:.0f} s"


class _Terminal:
    """Shows the compilation that began first, of those that are under way."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._running: list[Progress] = []
        self._is_watched = False

    def begin(self, progress: Progress) -> None:
        with self._lock:
            self._running.append(progress)
            if self._is_watched:
                return
            self._is_watched = True
        if start_in_background(self._watch, "plait-progress") is None:
            self._is_watched = False

    def end(self, progress: Progress) -> None:
        with self._lock:
            self._running.remove(progress)

    def _watch(self) -> None:
        is_shown = False
        while True:
            with self._lock:
                first = self._running[0] if self._running and not endings() else None
                if first is None:
                    self._is_watched = False
                    if is_shown:
                        _write(_WIPE)
                    return
            is_late = time.monotonic() - first.since > _AFTER_SECONDS
            if is_late:
                columns = shutil.get_terminal_size().columns
                _write(_WIPE + str(first)[: max(columns - 1, 0)])
            elif is_shown:
                _write(_WIPE)
            is_shown = is_late
            time.sleep(_EVERY_SECONDS)

    def forget(self) -> None:
        """In a forked child, which has none of its parent's threads."""
        self._lock = new_lock()
        self._running = []
        self._is_watched = False


_terminal = _Terminal()
os.register_at_fork(after_in_child=_terminal.forget)


@contextmanager
def shown(progress: Progress) -> Iterator[None]:
    """Show on the terminal how far a compilation is, while the block runs."""
    if not _is_wanted():
        yield
        return
    _terminal.begin(progress)
    try:
        yield
    finally:
        with suppress(ValueError):  # of a forked child that began in its parent
            _terminal.end(progress)


def _is_wanted() -> bool:
    if os.environ.get("PLAIT_PROGRESS", "1").lower() in ("0", "off", "false", "no"):
        return False
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except Exception:  # it is closed, or something of the program's own
        return False


def _write(text: str) -> None:
    with suppress(Exception):  # whatever a program's own standard error raises
        sys.stderr.write(text)
        sys.stderr.flush()
