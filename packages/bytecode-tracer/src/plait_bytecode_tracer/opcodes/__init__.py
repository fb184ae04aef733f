"""Handlers of opcodes, by name; importing this registers them all."""

from plait_bytecode_tracer import rules
from plait_bytecode_tracer.opcodes import (
    calls,
    class_bodies,
    collections,
    control,
    coroutines,
    exceptions,
    intrinsics,
    load_store,
    matching,
    operators,
)
from plait_bytecode_tracer.opcodes.registry import handlers, registered
from plait_bytecode_tracer.opcodes.untraced import UNTRACED

__all__ = [
    "calls",
    "class_bodies",
    "collections",
    "control",
    "coroutines",
    "exceptions",
    "handlers",
    "intrinsics",
    "load_store",
    "matching",
    "operators",
    "registered",
    "rules",
    "untraced",
]


def untraced(name: str) -> str:
    """An opcode without a handler, with the reason."""
    return f"{name}: {UNTRACED.get(name, 'it is not known')}"
