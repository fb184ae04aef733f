"""Why a trace ends before its function does."""

from __future__ import annotations

from dataclasses import dataclass

from plait_utils import PlaitError


@dataclass(frozen=True, slots=True)
class BreakKind:
    """A stable code for a cause of graph breaks, with what it means and what to change."""

    code: str
    title: str
    hint: str


def _kinds(*rows: tuple[str, str, str]) -> dict[str, BreakKind]:
    table: dict[str, BreakKind] = {}
    for code, title, hint in rows:
        if code in table:
            raise ValueError(f"graph break {code} is declared twice")
        table[code] = BreakKind(code, title, hint)
    return table


BREAKS = _kinds(
    ("GB0001", "opcode not supported", "Move the statement out of the compiled function."),
    (
        "GB0002",
        "call that cannot be traced",
        "Call it outside of the compiled function, or register it as a custom op.",
    ),
    (
        "GB0003",
        "branch on the value of a tensor",
        "Use torch.where, or move the branch out of the compiled function.",
    ),
    (
        "GB0004",
        "value of a tensor needed in Python",
        "Keep the value in a tensor, or read it outside of the compiled function.",
    ),
    ("GB0005", "output to the world", "Print or log outside of the compiled function."),
    ("GB0006", "exception raised", "Nothing to change if the exception is meant."),
    ("GB0007", "attribute that cannot be traced", "Read it outside of the compiled function."),
    ("GB0008", "operation that fails on these operands", "See the error that eager raises."),
    ("GB0009", "object that cannot be traced", "Pass tensors, numbers or plain containers."),
    ("GB0010", "module with hooks", "Remove the hooks, or compile the modules inside."),
    ("GB0011", "generator or coroutine", "Use a list or a loop."),
    (
        "GB0013",
        "function that looks into its caller's frame",
        "Name the values instead of asking for the frame's variables.",
    ),
    (
        "GB0012",
        "fault of the tracer",
        "Please report it, with the function and its arguments; the call ran eagerly.",
    ),
)
"""Every cause of a graph break by its code."""


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
