"""Who sees an error that only the run of a graph raises: the handlers around what is traced."""

from __future__ import annotations

import types
from enum import Enum
from functools import lru_cache

from plait_bytecode_tracer.breaking.origins import origin_of
from plait_bytecode_tracer.exceptions.table import HandlerRange
from plait_bytecode_tracer.frames.frame import (
    TORCH_FOLDER,
    Frame,
    handler_of_exceptions,
    instructions_of,
)
from plait_bytecode_tracer.objects.statics import class_of
from plait_bytecode_tracer.values.variables import BoundVariable, Known, MethodVariable, Variable


class Handler(Enum):
    """What handles an exception."""

    EXCEPT = "except"
    WITH = "with"
    FINALLY = "finally"
    CLEANUP = "cleanup"
    """The interpreter's own: it ends a handler, and raises again."""


@lru_cache(maxsize=4096)
def handler_kind(code: types.CodeType, target: int) -> Handler:
    """What the code at the target of an entry of an exception table is."""
    instructions, by_offset = instructions_of(code)
    first, second, *_ = instructions[by_offset[target] :]
    if first.opname != "PUSH_EXC_INFO":
        return Handler.CLEANUP
    if second.opname == "WITH_EXCEPT_START":
        return Handler.WITH
    for instruction in instructions[by_offset[target] :]:
        if instruction.opname in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "POP_EXCEPT"):
            return Handler.EXCEPT
        if instruction.opname == "RERAISE":
            return Handler.FINALLY
    return Handler.FINALLY


def sees_errors(frame: Frame) -> bool:
    """Whether a frame must see the errors of what runs in it: code of its own handles them.

    That is an `except`, a `with` of a manager that is not torch's, and any handler that may have
    been entered before a break: what it undoes has been done. What is not: `finally`, and modes
    of torch's; what the trace has done by them has not happened where the graph fails.
    """
    code = frame.code
    if not code.co_exceptiontable or code.co_filename.startswith(TORCH_FOLDER):
        return False
    goes_on = origin_of(code) is not None
    found = handler_of_exceptions(code, frame.instruction.offset)
    while found is not None:
        kind = handler_kind(code, found.target)
        if kind is not Handler.CLEANUP and (goes_on or _handles(frame, kind, found)):
            return True
        found = handler_of_exceptions(code, found.target)
    return False


def _handles(frame: Frame, kind: Handler, found: HandlerRange) -> bool:
    if kind is not Handler.WITH:
        return kind is Handler.EXCEPT
    return not is_of_torch(frame.stack[found.depth - 1])


def is_of_torch(leave: Variable) -> bool:
    """Whether the `__exit__` of a manager is that of a class of torch's."""
    match leave:
        case BoundVariable(self=owner) | MethodVariable(owner=owner):
            cls = class_of(owner)
        case Known(types.MethodType() as method):
            cls = type(method.__self__)
        case _:
            return False
    return str(cls.__module__).partition(".")[0] == "torch"
