"""Specialisations as data: what another process needs to go without tracing."""

from plait_bytecode_tracer.stored.codes import code_hash
from plait_bytecode_tracer.stored.entry import StoredEntry, restored, stored
from plait_bytecode_tracer.stored.errors import DiffersError, NotStoredError
from plait_bytecode_tracer.stored.keeping import Keeper, Kept

__all__ = [
    "DiffersError",
    "Keeper",
    "Kept",
    "NotStoredError",
    "StoredEntry",
    "code_hash",
    "restored",
    "stored",
]
