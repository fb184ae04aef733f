"""Code objects by their content."""

from __future__ import annotations

import types

from plait_bytecode_tracer.stored.errors import NotStoredError
from plait_bytecode_tracer.stored.literals import literal
from plait_utils import stable_hash


def code_hash(code: types.CodeType) -> str:
    """A hash of all that a code object does, with its lines: errors and warnings name these."""
    return stable_hash(
        *(code.co_name, code.co_qualname, code.co_code, code.co_exceptiontable),
        *(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        *(code.co_firstlineno, code.co_linetable),
        [_constant(value) for value in code.co_consts],
    )


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
