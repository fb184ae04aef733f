"""One handler for each opcode, registered with its name and the versions that have it."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Mapping

from plait_bytecode_tracer.frames.frame import Handler

Version = tuple[int, int]
_handlers: dict[str, Handler] = {}
_current: Version = (sys.version_info[0], sys.version_info[1])


def opcode(
    *names: str, since: Version = (3, 11), until: Version = (3, 14)
) -> Callable[[Handler], Handler]:
    """Register a handler for opcodes that Python `since` to `until` (exclusive) have.

    Raises ValueError for an opcode that the running Python should have and lacks, and
    for one with two handlers.
    """

    def register(handler: Handler) -> Handler:
        for name in names:
            if not since <= _current < until:
                continue
            if name not in dis.opmap:
                raise ValueError(f"Python {_current[0]}.{_current[1]} has no opcode {name}")
            if name in _handlers:
                raise ValueError(f"opcode {name} has two handlers")
            _handlers[name] = handler
        return handler

    return register


def handlers() -> Mapping[str, Handler]:
    """The handlers of opcodes by name."""
    return _handlers


def registered() -> frozenset[str]:
    """The opcodes that have handlers."""
    return frozenset(_handlers)
