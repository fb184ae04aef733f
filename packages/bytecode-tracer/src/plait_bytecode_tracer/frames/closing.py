"""Generators that are dropped while they wait: closing one raises GeneratorExit where it waits."""

from __future__ import annotations

import types
from collections.abc import Callable

from plait_bytecode_tracer.frames.frame import handler_of_exceptions, instructions_of

_CLEANUP = ["COPY", "POP_EXCEPT", "RERAISE"]


def acts_when_closed(
    code: types.CodeType, offset: int, is_missed_by: Callable[[str], bool]
) -> bool:
    """Whether a generator that waits at `offset` does something when it is closed.

    What it delegates to is closed too, and is a generator of its own. `is_missed_by` tells whether
    the class that a global name stands for is none of GeneratorExit's.
    """
    found = handler_of_exceptions(code, offset)
    while found is not None:
        left_at = _left_at(code, found.target, is_missed_by)
        if left_at is None:
            return True
        found = handler_of_exceptions(code, left_at)
    return False


def is_of_another_kind(cls: object) -> bool:
    """Whether `except cls` lets GeneratorExit pass, and nothing is wrong with that."""
    is_exception = isinstance(cls, type) and issubclass(cls, BaseException)
    return is_exception and cls not in GeneratorExit.__mro__


def _left_at(code: types.CodeType, target: int, is_missed_by: Callable[[str], bool]) -> int | None:
    """Where a handler lets GeneratorExit pass at once; None where it does something."""
    instructions, by_offset = instructions_of(code)
    index = by_offset[target]
    names = [each.opname for each in instructions[index : index + 3]]
    if names[0] == "CLEANUP_THROW":
        return target
    if names == _CLEANUP:
        return instructions[index + 2].offset
    if names[0] != "PUSH_EXC_INFO":
        return None
    index += 1
    while instructions[index].opname != "RERAISE":
        classes = []
        while instructions[index].opname == "LOAD_GLOBAL":
            classes.append(instructions[index].argval)
            index += 1
        if len(classes) > 1 and instructions[index].opname == "BUILD_TUPLE":
            index += 1
        compared, jump = instructions[index : index + 2]
        if compared.opname != "CHECK_EXC_MATCH" or not all(map(is_missed_by, classes)):
            return None
        if not classes or "IF_FALSE" not in jump.opname:
            return None
        index = by_offset[jump.argval]
    return instructions[index].offset
