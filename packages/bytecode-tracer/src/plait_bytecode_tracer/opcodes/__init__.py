"""Handlers of opcodes, by name; importing this registers them all."""

from plait_bytecode_tracer import autograd, logs, modes
from plait_bytecode_tracer.opcodes import (
    calls,
    collections,
    control,
    exceptions,
    load_store,
    operators,
)
from plait_bytecode_tracer.opcodes.registry import handler_of, registered

__all__ = [
    "autograd",
    "calls",
    "collections",
    "control",
    "exceptions",
    "handler_of",
    "load_store",
    "logs",
    "modes",
    "operators",
    "registered",
]
