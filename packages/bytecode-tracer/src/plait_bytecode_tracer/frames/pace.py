"""How long a trace has been going, and when it has to stop."""

from __future__ import annotations

import types
from collections.abc import Sequence

from plait_bytecode_tracer.errors import TooLongError
from plait_utils import dataclass

MAX_IDLE_STEPS = 50_000
"""Instructions in a row that add nothing to the graph; a trace with more of them is given up."""
STEPS_FOR_EACH = 50
"""How many more there may be for each input and operation that the graph has: programs go over
their lists of tensors several times, as an optimizer does to compute with numbers."""


@dataclass(frozen=True, slots=True)
class Moment:
    """An instruction as a trace has come to it, to know it when the call is traced again.

    What the program reads may have changed by then, in another thread, and so the way.
    """

    step: int
    """Its number."""
    code: types.CodeType
    offset: int


@dataclass(slots=True)
class Pace:
    """Counts of one trace; a step is an instruction."""

    steps: int = 0
    """How many have been traced."""
    idle_since: int = 0
    """The last one that added to the graph."""
    effort: int = 0
    """What the trace has done since beside its instructions, in steps."""
    allowed: int = MAX_IDLE_STEPS
    """How many of both there may be."""
    arrived: Sequence[int] = ()
    """The signals that wait for the trace to stop."""
    break_step: int = -1
    """The instruction at which the trace ends, by its number."""

    def note_operation(self) -> None:
        """The graph grows: what is traced is worth it."""
        self.idle_since, self.effort = self.steps, 0
        self.allowed += STEPS_FOR_EACH

    def note_input(self) -> None:
        """The graph has one more input."""
        self.allowed += STEPS_FOR_EACH

    def require_brief(self) -> None:
        """Give up a trace that goes on for long without adding to the graph."""
        if self.steps - self.idle_since + self.effort > self.allowed:
            raise TooLongError("GB0001", "a loop that runs too long to trace")
