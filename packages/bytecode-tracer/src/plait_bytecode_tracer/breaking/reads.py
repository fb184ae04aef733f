"""Which variables a function may read from an instruction on."""

from __future__ import annotations

import dis
import types
from collections.abc import Mapping, Set
from dis import Instruction
from functools import lru_cache

from plait_bytecode_tracer.exceptions.table import handler_at
from plait_bytecode_tracer.frames.frame import instructions_of

_ENDS = frozenset(
    {
        *("RETURN_VALUE", "RETURN_CONST", "RERAISE", "RAISE_VARARGS"),
        *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
    }
)
"""Instructions after which the next one does not run."""
_JUMPS = frozenset([*dis.hasjrel, *dis.hasjabs])
_LOOKS = frozenset(
    {
        *("locals", "vars", "dir", "eval", "exec", "breakpoint", "set_trace"),
        *("_getframe", "currentframe", "f_locals"),
    }
)
"""Names in code that may see all variables of a frame."""


def looks_at_variables(code: types.CodeType) -> bool:
    """Whether code names what sees variables that it does not read itself."""
    return not _LOOKS.isdisjoint(code.co_names)


def reads_after_error(
    code: types.CodeType, offset: int, *, may_return: bool
) -> frozenset[str] | None:
    """The variables that may be read once the instruction at an offset has raised, or returned if
    it may; None for any."""
    if looks_at_variables(code):
        return None
    by_offset = instructions_of(code)[1]
    handler = handler_at(code, offset)
    places = [] if handler is None else [by_offset[handler.target]]
    places += [by_offset[offset] + 1] * may_return
    return frozenset().union(*(_table(code)[place] for place in places))


def reads_from(code: types.CodeType, offset: int) -> frozenset[str] | None:
    """The variables that may be read from the instruction at an offset on; None for any."""
    if looks_at_variables(code):
        return None
    return _table(code)[instructions_of(code)[1][offset]]


@lru_cache(maxsize=512)
def _table(code: types.CodeType) -> tuple[frozenset[str], ...]:
    """For each instruction, and behind the last, the variables that may be read from there on."""
    instructions, by_offset = instructions_of(code)
    cells = {*code.co_cellvars, *code.co_freevars}
    steps = [_step(each, cells) for each in instructions]
    ways = [_following(n, each, by_offset) for n, each in enumerate(instructions)]
    handlers = [_handler(code, each, by_offset) for each in instructions]
    found: list[frozenset[str]] = [frozenset()] * (len(instructions) + 1)
    changed = True
    while changed:  # once more for each loop within loops
        changed = False
        for n in reversed(range(len(instructions))):
            reads, stores = steps[n]
            after = frozenset().union(*(found[way] for way in ways[n]))
            caught = frozenset().union(*(found[handler] for handler in handlers[n]))
            made = reads | (after - stores) | caught
            changed |= made != found[n]
            found[n] = made
    always = _of_super(code)
    return tuple(each | always for each in found)


def _step(instruction: Instruction, cells: Set[str]) -> tuple[frozenset[str], frozenset[str]]:
    """What an instruction reads of variables, and then stores.

    What a cell holds others may read too: a cell that is named at all counts as read.
    """
    name, argument = instruction.opname, instruction.argval
    named = argument if isinstance(argument, tuple) else (argument,)
    variables = [each for each in named if isinstance(each, str)]
    read = {each for each in variables if each in cells}
    stored: set[str] = set()
    if "_FAST" in name:
        kinds = [part for part in name.split("_") if part in ("LOAD", "STORE", "DELETE")]
        for kind, variable in zip(kinds, variables, strict=True):
            if kind == "STORE" and variable not in cells:
                stored.add(variable)
            elif variable not in stored:
                read.add(variable)
    return frozenset(read), frozenset(stored)


def _following(index: int, instruction: Instruction, by_offset: Mapping[int, int]) -> list[int]:
    found = [] if instruction.opname in _ENDS else [index + 1]
    return [*found, by_offset[instruction.argval]] if instruction.opcode in _JUMPS else found


def _handler(
    code: types.CodeType, instruction: Instruction, by_offset: Mapping[int, int]
) -> list[int]:
    handler = handler_at(code, instruction.offset)
    return [] if handler is None else [by_offset[handler.target]]


def _of_super(code: types.CodeType) -> frozenset[str]:
    """What `super()` reads without naming it."""
    if "__class__" not in code.co_freevars:
        return frozenset()
    return frozenset({"__class__", *code.co_varnames[: min(code.co_argcount, 1)]})
