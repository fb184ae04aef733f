"""Which way a branch goes that raises on its other side.

`assert valid.all()` and `if torch.isnan(x).any(): raise ValueError` branch on data, and one of the
two ways ends at once in an exception: the program expects to go the other. What is found here is
a guess of what calls will do. It need not be right: a call that goes the other way runs as Python.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Sequence

from plait_bytecode_tracer.frames.frame import Frame, instructions_of
from plait_bytecode_tracer.frames.raising_ways import JUMPS, PASSING, expected_at, only_raises
from plait_bytecode_tracer.frames.tested_parameters import expected_of_argument
from plait_bytecode_tracer.objects.statics import class_of, static_attribute
from plait_bytecode_tracer.values.variables import Known, ObjectVariable

_NEXT = 40
"""How far behind its assignment a variable is looked at."""
_TAKES = {
    **{name: 0 for name in dis.opmap if name.startswith(("LOAD_FAST", "LOAD_GLOBAL"))},
    **dict.fromkeys(("LOAD_CONST", "LOAD_DEREF", "LOAD_NAME", "PUSH_NULL"), 0),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "UNARY_NEGATIVE", "UNARY_INVERT"), 1),
    **dict.fromkeys(("BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP"), 2),
}
"""The instructions that are allowed beside a number that is read: how many values each takes."""


def expected_truth(frame: Frame, *, after: bool = False) -> bool | None:
    """The truth of the value that the running instruction tests, if the other way raises.

    With `after` that of what the instruction gives, where the program tests it later on. None
    where nothing is expected.
    """
    return _expected(frame, frame.index + after, len(frame.stack))


def expected_of_comparison(frame: Frame, is_asked: bool) -> bool | None:
    """What is expected of a comparison, if that is all that the running call's result is for.

    `is_asked`: the function that is called next with it tells something of it, as comparisons do.
    """
    instructions, _ = instructions_of(frame.code)
    above = 0
    """How many values lie above the result."""
    for index in range(frame.index + 1, min(frame.index + _NEXT, len(instructions))):
        found = instructions[index]
        name, count = found.opname, found.arg or 0
        if name in PASSING or (name in ("SWAP", "COPY") and count == 2 and above == 0):
            continue  # in chains of comparisons the result is copied
        if name == "CALL" and above == 0 and count == 1 and is_asked:
            return _expected(frame, index + 1, len(frame.stack) - 2)
        if name == "COMPARE_OP" and above < 2:
            return _expected(frame, index + 1, len(frame.stack) - (above == 0))
        taken = count + 2 if name == "CALL" else _TAKES.get(name)
        if taken is None or above < taken:
            return None
        above += 1 - taken if name == "CALL" else dis.stack_effect(found.opcode, found.arg)
    return None


def _expected(frame: Frame, index: int, below: int = 0) -> bool | None:
    """What is expected of the value on the stack when an instruction runs.

    `below` it are so many values that are on the stack now; 0 if that is not known.
    """
    instructions, _ = instructions_of(frame.code)
    negated = False
    while index < len(instructions):
        name = instructions[index].opname
        if name == "UNARY_NOT":
            negated = not negated
        elif name in ("RETURN_VALUE", "STORE_FAST"):
            found = _of_result(frame) if name == "RETURN_VALUE" else _of_variable(frame, index)
            return found if found is None else found is not negated
        elif "POP_JUMP" in name:
            found = expected_at(frame.code, index, _raising_names(frame))
            return found if found is None else found is not negated
        elif (against := _asks_for(instructions[index : index + 2])) is not None:
            index += 1
            negated ^= not against
        elif name not in PASSING:
            found = expected_of_argument(frame, index, below)
            return found if found is None else found is not negated
        index += 1
    return None


def _asks_for(found: Sequence[dis.Instruction]) -> bool | None:
    """The truth for which a comparison of a bool with another, a constant, gives True."""
    loads, compares = found[0], found[-1]
    if loads.opname != "LOAD_CONST" or not isinstance(loads.argval, bool):
        return None
    if compares.opname == "IS_OP":
        return loads.argval is not bool(compares.arg)
    if compares.opname != "COMPARE_OP" or compares.argval not in ("==", "!="):
        return None
    return loads.argval is (compares.argval == "==")


def _of_result(frame: Frame) -> bool | None:
    """What the caller expects a function to return."""
    caller = frame.parent
    if caller is None or not frame.is_direct:
        return None
    return _expected(caller, caller.index + 1, len(caller.stack))


def _of_variable(frame: Frame, index: int) -> bool | None:
    """What is expected of a variable that is tested soon after it is assigned."""
    instructions, _ = instructions_of(frame.code)
    name = instructions[index].argval
    for place in range(index + 1, min(index + _NEXT, len(instructions))):
        found = instructions[place]
        if found.opcode in JUMPS or found.opname.startswith(("RETURN", "STORE_FAST_LOAD")):
            return None
        if found.argval == name:
            if found.opname.startswith("LOAD_FAST"):
                return _expected(frame, place + 1)
            return None
    return None


def _raising_names(frame: Frame) -> frozenset[str]:
    """The names by which code calls functions, or methods of its object, that only raise."""
    owner = frame.locals.get(frame.code.co_varnames[0]) if frame.code.co_argcount else None
    cls = class_of(owner) if isinstance(owner, ObjectVariable | Known) else object
    found = []
    for name in frame.code.co_names:
        for held in (frame.function.globals.get(name), static_attribute(cls, name)):
            function = getattr(held, "__func__", held)
            if isinstance(function, types.FunctionType) and only_raises(function.__code__):
                found.append(name)
    return frozenset(found)
