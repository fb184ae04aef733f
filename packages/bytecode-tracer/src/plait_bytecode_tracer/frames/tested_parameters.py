"""What functions expect of what they are given: `torch._check(condition)` raises where it is false.

Where a value of the trace is passed on, the code of the function that gets it tells what it is
tested for. That is looked for, not proven: see `branches`.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Sequence
from typing import Any

from plait_bytecode_tracer.frames.frame import NULL, Frame, instructions_of
from plait_bytecode_tracer.frames.raising_ways import PASSING, expected_at
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    FunctionVariable,
    Known,
    Variable,
)

_LOADS = ("LOAD_CONST", "LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_NAME")
"""Beginnings of the names of instructions that only push values."""
_DEEPEST = 3
"""Through how many functions a value is followed."""
_MOST = 12
"""How many instructions lead from a value to the call that it is given to."""


def expected_of_argument(frame: Frame, start: int, below: int) -> bool | None:
    """The truth that a function expects of a value which it is called with next.

    Args:
        frame: the frame that calls it.
        start: the instruction that follows when the value is on the stack.
        below: how many values are on the stack below it.
    """
    instructions, _ = instructions_of(frame.code)
    above = 0
    for found in instructions[start : start + _MOST]:
        count = found.arg or 0
        if found.opname == "CALL":
            place = count - 1 - above
            first = below - place - 2
            if place < 0 or first < 0:
                return None
            return _of_callable(frame.stack[first], frame.stack[first + 1], place)
        pushed = _pushed(found)
        if pushed is None:
            return None
        above += pushed
    return None


def _pushed(found: dis.Instruction) -> int | None:
    """How many values more are on the stack; None for an instruction that may take some away."""
    if found.opname in PASSING:
        return 0
    if found.opname.startswith(_LOADS):
        return dis.stack_effect(found.opcode, found.arg)
    if found.opname in ("MAKE_FUNCTION", "BUILD_TUPLE", "SET_FUNCTION_ATTRIBUTE"):
        return dis.stack_effect(found.opcode, found.arg)  # a lambda, which makes a message
    return None


def _of_callable(lower: Variable, upper: Variable, place: int) -> bool | None:
    """What a callable, or a function and what it is bound to, expects of an argument."""
    function = upper if lower is NULL else lower
    place += lower is not NULL and upper is not NULL
    if isinstance(function, BoundVariable):
        function, place = function.function, place + 1
    match function:
        case Known(types.FunctionType() as real):
            return _of_parameter(real.__code__, real.__globals__, place, 0)
        case Known(types.MethodType(__func__=types.FunctionType() as real)):
            return _of_parameter(real.__code__, real.__globals__, place + 1, 0)
        case FunctionVariable():
            return _of_parameter(function.code, function.globals, place, 0)
    return None


def _of_parameter(
    code: types.CodeType, space: dict[str, Any], place: int, depth: int
) -> bool | None:
    """What code expects of one of its parameters: the first test that has a way that raises."""
    if place >= code.co_argcount or depth > _DEEPEST:
        return None
    name = code.co_varnames[place]
    instructions, _ = instructions_of(code)
    for index, found in enumerate(instructions):
        if found.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and _last(found) == name:
            expected = _tested(code, instructions, index + 1)
            if expected is not None:
                return expected
        else:
            called = _function(instructions, index, space)
            given = [] if called is None else _given(instructions, index + 1)
            if called is not None and name in given:
                inner = given.index(name)
                passed = _of_parameter(called.__code__, called.__globals__, inner, depth + 1)
                if passed is not None:
                    return passed
    return None


def _function(
    instructions: Sequence[dis.Instruction], index: int, space: dict[str, Any]
) -> types.FunctionType | None:
    """The function that an instruction reads from the globals, or from a module by its name."""
    found, before = instructions[index], instructions[index - 1]
    held: Any = None
    if found.opname == "LOAD_GLOBAL":
        held = space.get(found.argval)
    elif found.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        name = before.argval
        module = space.get(name, sys.modules.get(name)) if isinstance(name, str) else None
        held = vars(module).get(found.argval) if isinstance(module, types.ModuleType) else None
    return held if isinstance(held, types.FunctionType) else None


def _last(found: dis.Instruction) -> object:
    """The variable that an instruction pushes last."""
    return found.argval[-1] if isinstance(found.argval, tuple) else found.argval


def _tested(
    code: types.CodeType, instructions: Sequence[dis.Instruction], index: int
) -> bool | None:
    """What is expected of a value, or of what a function of it alone says, that is tested next."""
    negated = False
    for place in range(index, min(index + _MOST, len(instructions))):
        found = instructions[place]
        if "POP_JUMP" in found.opname:
            expected = expected_at(code, place)
            return expected if expected is None else expected is not negated
        if found.opname == "UNARY_NOT":
            negated = not negated
        elif found.opname not in PASSING and not (found.opname == "CALL" and found.arg == 1):
            return None
    return None


def _given(instructions: Sequence[dis.Instruction], index: int) -> list[object]:
    """The variables that a call is given, by position; empty where it is given anything else."""
    given: list[object] = []
    for found in instructions[index : index + _MOST]:
        if found.opname == "CALL" and found.arg == len(given):
            return given
        if found.opname.startswith("LOAD_FAST") and isinstance(found.argval, tuple):
            given += found.argval
        elif found.opname.startswith((*_LOADS, "LOAD_GLOBAL")):
            given.append(found.argval)
        elif found.opname not in (*PASSING, "PUSH_NULL"):
            return []
    return []
