"""Which ways through code soon end by raising."""

from __future__ import annotations

import dis
import inspect
import types
from functools import lru_cache

from plait_bytecode_tracer.frames.frame import instructions_of

JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
PASSING = frozenset({"EXTENDED_ARG", "NOP", "TO_BOOL", "PRECALL", "RESUME"})
"""Instructions that leave the truth of the value on the stack as it is."""
_MOST = 250
"""How many instructions lead to an exception at most, over all ways to it."""
_GOES = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})
_ENDS = frozenset({"RAISE_VARARGS", "RERAISE"})
_READS = frozenset({"LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"})
_SUSPENDS = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)


@lru_cache(maxsize=4096)
def only_raises(code: types.CodeType) -> bool:
    """Whether a function always ends, and soon, by raising."""
    return not code.co_flags & _SUSPENDS and _raises(code, 0, frozenset())


@lru_cache(maxsize=4096)
def expected_at(
    code: types.CodeType, index: int, raising: frozenset[str] = frozenset()
) -> bool | None:
    """The truth with which a conditional jump does not go where an exception is raised.

    `raising` are names of functions that only raise: who reads one will call it.
    """
    instructions, by_offset = instructions_of(code)
    jump = instructions[index]
    if "NONE" in jump.opname:
        return None
    jumps_raise = _raises(code, by_offset[jump.argval], raising)
    if jumps_raise is _raises(code, index + 1, raising):
        return None
    return jump.opname.endswith("TRUE") is not jumps_raise


def _raises(code: types.CodeType, start: int, raising: frozenset[str]) -> bool:
    """Whether all ways from an instruction end soon by raising."""
    instructions, by_offset = instructions_of(code)
    waiting, seen, has_end = [start], set[int](), False
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        found = instructions[index]
        if found.opname.startswith(("RETURN_", "YIELD")) or len(seen) > _MOST:
            return False
        is_call = found.opname in _READS and found.argval in raising
        if is_call or found.opname in _ENDS:
            has_end = True
            continue
        if found.opcode in JUMPS:
            waiting.append(by_offset[found.argval])
        if found.opname not in _GOES and index + 1 < len(instructions):
            waiting.append(index + 1)
    return has_end
