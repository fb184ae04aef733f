"""Why a trace ends before its function does."""

from __future__ import annotations

from dataclasses import dataclass

from plait_bytecode_tracer.break_kinds import BREAKS, BreakKind
from plait_utils import PlaitError


class TraceBreakError(Exception):
    """Raised inside a trace at what it cannot follow. Never reaches the user."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = BREAKS[code]
        self.reason = reason


class FullGraphError(PlaitError):
    """A graph break under `fullgraph=True`."""


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A graph break that happened: why, and where in the user's code."""

    code: str
    reason: str
    line: str
    hint: str

    def __str__(self) -> str:
        return f"[{self.code}] {self.reason}\n  at: {self.line}\n  hint: {self.hint}"


__all__ = ["BREAKS", "BreakKind", "FullGraphError", "GraphBreak", "TraceBreakError"]
