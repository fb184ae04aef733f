"""Specialisations as data: what another process needs to go without tracing."""

from typing import TYPE_CHECKING

from plait_bytecode_tracer.stored.codes import code_hash
from plait_bytecode_tracer.stored.errors import DiffersError, NotRepeatedError, NotStoredError
from plait_bytecode_tracer.stored.keeping import Keeper, Kept
from plait_utils import late_exports

if TYPE_CHECKING:
    from plait_bytecode_tracer.stored.entry import StoredEntry, restored
    from plait_bytecode_tracer.stored.storing import stored
else:  # what reads entries is of no use where there is none, and what writes them not yet
    __getattr__ = late_exports(
        __name__,
        {
            "plait_bytecode_tracer.stored.entry": ["StoredEntry", "restored"],
            "plait_bytecode_tracer.stored.storing": ["stored"],
        },
    )

__all__ = [
    "DiffersError",
    "Keeper",
    "Kept",
    "NotRepeatedError",
    "NotStoredError",
    "StoredEntry",
    "code_hash",
    "restored",
    "stored",
]
