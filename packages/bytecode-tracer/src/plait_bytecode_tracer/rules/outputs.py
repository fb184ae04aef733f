"""What printing, logging and warnings have in common: they are done after the graph has run."""

from __future__ import annotations

from collections.abc import Callable

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.guards import Kind, Mode


def require_plain(frame: Frame, ask: Callable[[], bool], verb: str) -> None:
    """Break where code of the program's sees what the call prints, logs or warns of."""
    if not ask():
        raise TraceBreakError("GB0005", f"what the code {verb} runs code of the program's")
    text = f"what the code {verb} runs no code of the program's"
    frame.state.require(None, Kind.MODE, Mode(ask, True), text)
