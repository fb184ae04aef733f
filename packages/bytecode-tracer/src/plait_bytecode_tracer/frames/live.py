"""The frames of a trace that have not ended."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import field
from typing import Any

from plait_bytecode_tracer.values.variables import CoroutineVariable, Variable
from plait_utils import dataclass


@dataclass(slots=True)
class LiveFrames:
    """Frames that run or wait, and what they are about to give."""

    root: Any = None
    """That of the call."""
    made: list[weakref.ref[Any]] = field(default_factory=list)
    """All that the trace has made; those that have ended may be gone."""
    running: list[Any] = field(default_factory=list)
    """Those that run now, innermost last: callers, but no generator that waits."""
    waiting: dict[int, Any] = field(default_factory=dict)
    """Those of generators that have yielded inside a `try` or `with`, by their ids."""
    coroutines: list[CoroutineVariable] = field(default_factory=list)
    """Coroutines that the trace has made: Python warns of one that is never awaited."""
    leaving: list[Variable] = field(default_factory=list)
    """What the call returns, once that is known."""
    lines: list[Callable[[], str]] = field(default_factory=list)
    """The user's line of each frame that runs."""
    files: list[str] = field(default_factory=list)
    """The user's file of each frame that runs."""

    def line(self) -> str:
        """The user's line that is being traced."""
        return self.lines[-1]() if self.lines else "the call"

    def clear(self) -> None:
        """Let go of the frames; their lines stay to be told.

        A generator or an iterator of the trace leads to its frame, and that to itself: until
        garbage is collected it would keep the frames that called it, and what these were given.
        """
        for reference in self.made:
            frame = reference()
            if frame is not None:
                for held in (frame.locals, frame.stack, frame.cells, frame.handled):
                    held.clear()
                frame.result = None
        for table in (self.made, self.running, self.waiting, self.coroutines, self.leaving):
            table.clear()
