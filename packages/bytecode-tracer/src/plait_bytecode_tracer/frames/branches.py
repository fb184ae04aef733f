"""Which way a branch goes that raises on its other side.

`assert valid.all()` and `if torch.isnan(x).any(): raise ValueError` branch on data, and one of the
two ways ends at once in an exception: the program expects to go the other. What is found here is
a guess of what calls will do. It need not be right: a call that goes the other way runs as Python.
"""

from __future__ import annotations

import dis
import inspect
import types
from functools import lru_cache

from plait_bytecode_tracer.frames.frame import Frame, instructions_of
from plait_bytecode_tracer.objects.statics import class_of, static_attribute
from plait_bytecode_tracer.values.variables import Known, ObjectVariable

_MOST = 250
"""How many instructions lead to an exception at most, over all ways to it."""
_NEXT = 40
"""How far behind its assignment a variable is looked at."""
_PASSING = frozenset({"EXTENDED_ARG", "NOP", "TO_BOOL", "PRECALL", "RESUME"})
"""Instructions that leave the truth of the value on the stack as it is."""
_GOES = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})
_ENDS = frozenset({"RAISE_VARARGS", "RERAISE"})
_TAKES = {
    **{name: 0 for name in dis.opmap if name.startswith(("LOAD_FAST", "LOAD_GLOBAL"))},
    **dict.fromkeys(("LOAD_CONST", "LOAD_DEREF", "LOAD_NAME", "PUSH_NULL"), 0),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "UNARY_NEGATIVE", "UNARY_INVERT"), 1),
    **dict.fromkeys(("BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP"), 2),
}
"""The instructions that are allowed beside a number that is read: how many values each takes."""
_READS = frozenset({"LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"})
_SUSPENDS = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})


def expected_truth(frame: Frame, *, after: bool = False) -> bool | None:
    """The truth of the value that the running instruction tests, if the other way raises.

    With `after` that of what the instruction gives, where the program tests it later on. None
    where nothing is expected.
    """
    return _expected(frame, frame.index + after)


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
        if name in _PASSING or (name in ("SWAP", "COPY") and count == 2 and above == 0):
            continue  # in chains of comparisons the result is copied
        if name == "CALL" and above == 0 and count == 1 and is_asked:
            return _expected(frame, index + 1)
        if name == "COMPARE_OP" and above < 2:
            return _expected(frame, index + 1)
        taken = count + 2 if name == "CALL" else _TAKES.get(name)
        if taken is None or above < taken:
            return None
        above += 1 - taken if name == "CALL" else dis.stack_effect(found.opcode, found.arg)
    return None


def _expected(frame: Frame, index: int) -> bool | None:
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
            found = _of_jump(frame.code, index, _raising_names(frame))
            return found if found is None else found is not negated
        elif name == "LOAD_CONST" and isinstance(instructions[index].argval, bool):
            index += 1
            against = _asks_for(instructions[index], instructions[index - 1].argval)
            if against is None:
                return None
            negated ^= not against
        elif name not in _PASSING:
            return None
        index += 1
    return None


def _asks_for(compares: dis.Instruction, with_: bool) -> bool | None:
    """The truth for which a comparison of a bool with another gives True."""
    if compares.opname == "IS_OP":
        return with_ is not bool(compares.arg)
    if compares.opname != "COMPARE_OP" or compares.argval not in ("==", "!="):
        return None
    return with_ is (compares.argval == "==")


def _of_result(frame: Frame) -> bool | None:
    """What the caller expects a function to return."""
    caller = frame.parent
    if caller is None or not frame.is_direct:
        return None
    return _expected(caller, caller.index + 1)


def _of_variable(frame: Frame, index: int) -> bool | None:
    """What is expected of a variable that is tested soon after it is assigned."""
    instructions, _ = instructions_of(frame.code)
    name = instructions[index].argval
    for place in range(index + 1, min(index + _NEXT, len(instructions))):
        found = instructions[place]
        if found.opcode in _JUMPS or found.opname.startswith(("RETURN", "STORE_FAST_LOAD")):
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


@lru_cache(maxsize=4096)
def only_raises(code: types.CodeType) -> bool:
    """Whether a function always ends, and soon, by raising."""
    return not code.co_flags & _SUSPENDS and _raises(code, 0, frozenset())


@lru_cache(maxsize=4096)
def _of_jump(code: types.CodeType, index: int, raising: frozenset[str]) -> bool | None:
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
        if found.opcode in _JUMPS:
            waiting.append(by_offset[found.argval])
        if found.opname not in _GOES and index + 1 < len(instructions):
            waiting.append(index + 1)
    return has_end
