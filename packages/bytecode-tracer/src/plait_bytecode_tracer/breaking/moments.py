"""Where a trace can end: the rest of what breaks take is loaded at the first one."""

from __future__ import annotations

from collections.abc import Container, Hashable
from dataclasses import field

from plait_bytecode_tracer.breaking.origins import is_chain
from plait_bytecode_tracer.errors import GraphBreak
from plait_bytecode_tracer.frames.effects import exits
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.frames.pace import Moment
from plait_utils import dataclass

_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
WATCHES = ("GB0014", "GB0017", "GB0018")
"""Codes of programs that see how long objects live, or change the interpreter itself: such a call
is plain Python as a whole."""


@dataclass(slots=True)
class Known:
    """The continuations that a function has by now."""

    keys: Container[Hashable] = field(default_factory=frozenset)
    count: int = 0


def break_moments(innermost: Frame, reason: GraphBreak) -> list[Moment]:
    """Where the trace can end, innermost frame first."""
    if reason.code in WATCHES:
        return []
    live = live_frames(innermost)
    found: list[Moment] = []
    for position, frame in enumerate(live):
        looks_here = reason.code == "GB0013" and position == 0
        looks_here |= frame.namespace is not None  # the body of a class, which has no locals
        inner = position + 1 < len(live)
        if looks_here or (inner and exits(frame.instruction) is None):
            continue
        if all(passes_on(frame) for frame in live[position:-1]):
            found.append(frame.moment)
    return found


def live_frames(innermost: Frame) -> list[Frame]:
    """A frame and those that called it, up to the call; what called continuations is left out."""
    found = [innermost]
    while (parent := found[-1].parent) is not None and not is_chain(parent.code):
        found.append(parent)
    return found


def passes_on(frame: Frame) -> bool:
    """Whether what a frame returns is what the pending call of its caller gives."""
    caller = frame.parent
    return caller is not None and frame.is_direct and caller.instruction.opname in _CALLS
