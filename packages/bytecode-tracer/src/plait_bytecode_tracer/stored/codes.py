"""Code objects by their content."""

from __future__ import annotations

import hashlib
import types

from plait_bytecode_tracer.stored.errors import NotStoredError
from plait_bytecode_tracer.stored.literals import literal


def code_hash(code: types.CodeType) -> str:
    """A hash of all that a code object does, with its lines: errors and warnings name these."""
    parts = (
        *(code.co_name, code.co_qualname, code.co_code, code.co_exceptiontable),
        *(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        *(code.co_firstlineno, code.co_linetable),
        [_constant(value) for value in code.co_consts],
    )
    return quick_hash(repr(parts))  # of text, bytes, numbers and tuples of these: one text each


def quick_hash(text: str) -> str:
    """32 hexadecimal digits, the same in every process."""
    encoded = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()


def _constant(value: object) -> str:
    if isinstance(value, types.CodeType):
        return code_hash(value)
    if isinstance(value, frozenset):
        return repr(("frozenset", sorted(map(_constant, value))))
    if isinstance(value, tuple):
        return repr(("tuple", [_constant(item) for item in value]))
    try:
        return repr((type(value).__name__, literal(value)))
    except NotStoredError:
        return repr((type(value).__name__, repr(value)))  # NaN, which codes hold as any other
