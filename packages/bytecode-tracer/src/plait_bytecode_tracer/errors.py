"""Why a trace ends before its function does."""

from __future__ import annotations

import re
from typing import Any

from plait_bytecode_tracer.break_kinds import BREAKS, BreakKind
from plait_utils import PlaitError, dataclass

_BEFORE_VOWEL = re.compile(r"\ba (?=[aeioAEIO](?!ne))")
"""Where an article stands before the name of a class, which begins with a vowel."""


class TraceBreakError(Exception):
    """Raised inside a trace at what it cannot follow. Never reaches the user."""

    def __init__(self, code: str, reason: str) -> None:
        self.reason = _BEFORE_VOWEL.sub("an ", reason)
        super().__init__(self.reason)
        self.kind = BREAKS[code]
        self.frame: Any = None
        """The innermost frame that was being traced."""


class TooLongError(TraceBreakError):
    """The program runs too long in Python alone: what follows is not traced again."""


class FullGraphError(PlaitError):
    """A graph break under `fullgraph=True`."""


class UncompilableError(PlaitError, ValueError):
    """What was given to compile is not something that computes."""


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A graph break that happened: why, and where in the user's code."""

    code: str
    reason: str
    lines: tuple[str, ...]
    """The user's lines that were running, innermost first."""
    hint: str

    @property
    def line(self) -> str:
        """The innermost of the user's lines."""
        return self.lines[0]

    @property
    def title(self) -> str:
        """What kind of break it is, in a few words."""
        return BREAKS[self.code].title

    def __str__(self) -> str:
        outer = "".join(f"\n  from: {line}" for line in self.lines[1:])
        return f"[{self.code}] {self.reason}\n  at: {self.line}{outer}\n  hint: {self.hint}"


__all__ = [
    "BREAKS",
    "BreakKind",
    "FullGraphError",
    "GraphBreak",
    "TraceBreakError",
    "UncompilableError",
]
