"""Debuggers and coverage tools: what they watch line by line runs as plain Python.

The lines of a compiled function are not executed, so nobody could see them. A profiler sees
calls; compiled functions stay compiled for it.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from plait_bytecode_tracer.guards.native import NATIVE

_TOOLS = range(6)
"""The identifiers that `sys.monitoring` has for tools."""


def line_watcher(code: types.CodeType) -> str | None:
    """Who watches the lines of some code, run in this thread; None if nobody does."""
    native = NATIVE.module
    version = 0 if native is None else native.watching()
    if sys.gettrace() is not None:
        return "a trace function is active (sys.settrace)"
    monitoring: Any = getattr(sys, "monitoring", None)  # of Python 3.12
    if monitoring is not None:
        name = _everywhere(monitoring)
        if name is None and native is not None:
            native.set_unwatched(version)
        name = name or _here(monitoring, code)
        return None if name is None else f"the tool {name!r} watches lines (sys.monitoring)"
    if native is not None:
        native.set_unwatched(version)
    return None


def _everywhere(monitoring: Any) -> str | None:
    """The tool that watches all code. Events of calls are of lines, unless a profiler asks:
    coverage tools choose by them which code to watch."""
    lines = _line_events(monitoring)
    for tool in _TOOLS:
        name: str | None = monitoring.get_tool(tool)
        if name is not None:
            events = monitoring.get_events(tool)
            if events & lines or (events and tool != monitoring.PROFILER_ID):
                return name
    return None


def _here(monitoring: Any, code: types.CodeType) -> str | None:
    """The tool that watches just this code."""
    lines = _line_events(monitoring)
    for tool in _TOOLS:
        name: str | None = monitoring.get_tool(tool)
        if name is not None and monitoring.get_local_events(tool, code) & lines:
            return name
    return None


def _line_events(monitoring: Any) -> int:
    events = monitoring.events
    return int(events.LINE | events.INSTRUCTION)
