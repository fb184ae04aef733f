"""Raising and handling exceptions; `with` blocks."""

from __future__ import annotations

import sys
from dis import Instruction

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.groups import group_to_raise, match_group
from plait_bytecode_tracer.exceptions.raising import (
    PythonError,
    exception_class,
    fails,
    is_exception,
)
from plait_bytecode_tracer.exceptions.tracebacks import handled_exception
from plait_bytecode_tracer.frames.frame import Frame, Handled, constant
from plait_bytecode_tracer.objects.attributes import load_attribute, store_attribute
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.objects import special_method
from plait_bytecode_tracer.objects.statics import guard_order
from plait_bytecode_tracer.opcodes.registry import opcode
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.variables import Known, SequenceVariable, Variable


@opcode("RAISE_VARARGS")
def raise_varargs(frame: Frame, instruction: Instruction) -> None:
    count = instruction.arg or 0
    cause = frame.pop() if count == 2 else None
    if count == 0:
        current = handled_exception(frame.state)
        if current is None:
            fails(RuntimeError, "No active exception to reraise")
        raise PythonError(current, is_new=False)
    raised = _instance(frame, frame.pop(), "exceptions must derive from BaseException")
    if cause is not None:
        is_none = isinstance(cause, Known) and cause.value is None
        if not is_none:
            cause = _instance(frame, cause, _CAUSES)
        store_attribute(frame, raised, "__cause__", cause)
    raise PythonError(raised)


_CAUSES = "exception causes must derive from BaseException"


def _instance(frame: Frame, value: Variable, otherwise: str) -> Variable:
    """The exception that is raised: a class is called."""
    if not (isinstance(value, Known) and isinstance(value.value, type)):
        if not is_exception(value):
            fails(TypeError, otherwise)
        return value
    cls = value.value
    if not issubclass(cls, BaseException):
        fails(TypeError, otherwise)
    made = frame.call(value, [], {})
    if not is_exception(made):
        if otherwise is _CAUSES and sys.version_info < (3, 13):
            raise TraceBreakError("GB0006", "a cause that is no exception, which nothing checks")
        text = "should have returned an instance of BaseException"
        fails(TypeError, f"calling {cls!r} {text}, not {type_of(made)!r}")
    return made


@opcode("PUSH_EXC_INFO")
def push_exc_info(frame: Frame, instruction: Instruction) -> None:
    raised = frame.pop()
    frame.push(Handled(raised))
    frame.push(raised)
    frame.handled.append(raised)


@opcode("POP_EXCEPT")
def pop_except(frame: Frame, instruction: Instruction) -> None:
    frame.pop()
    frame.handled.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(frame: Frame, instruction: Instruction) -> None:
    wanted = plain_value(frame.pop())
    raised = exception_class(frame.stack[-1])
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        fails(TypeError, "catching classes that do not inherit from BaseException is not allowed")
    guard_order(frame, raised)
    frame.push(constant(issubclass(raised, kinds)))


@opcode("RERAISE")
def reraise(frame: Frame, instruction: Instruction) -> None:
    error = PythonError(frame.pop(), is_new=False)
    if instruction.arg:
        offset = frame.stack[-instruction.arg]
        error.last = offset.value if isinstance(offset, Known) else None
    raise error


@opcode("CHECK_EG_MATCH")
def check_eg_match(frame: Frame, instruction: Instruction) -> None:
    wanted = frame.pop()
    kinds = elements(frame, wanted) if isinstance(wanted, SequenceVariable) else [wanted]
    plain = [plain_value(kind) for kind in kinds]
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in plain):
        fails(TypeError, "catching classes that do not inherit from BaseException is not allowed")
    if any(issubclass(kind, BaseExceptionGroup) for kind in plain):
        text = "catching ExceptionGroup with except* is not allowed. Use except instead."
        fails(TypeError, text)
    match, rest = match_group(frame, frame.pop(), wanted)
    frame.push(rest)
    frame.push(match)
    if not (isinstance(match, Known) and match.value is None):
        frame.handled[-1] = match
        next(v for v in reversed(frame.stack) if isinstance(v, Handled)).raised = match


@opcode("PREP_RERAISE_STAR", until=(3, 12))
def prep_reraise_star(frame: Frame, instruction: Instruction) -> None:
    raised, original = frame.pop(), frame.pop()
    frame.push(group_to_raise(frame, original, raised))


@opcode("BEFORE_WITH")
def before_with(frame: Frame, instruction: Instruction) -> None:
    manager = frame.pop()
    leave = special_method(frame, manager, "__exit__")
    enter = special_method(frame, manager, "__enter__")
    if enter is None or leave is None:
        raise TraceBreakError("GB0002", "a context manager that cannot be traced")
    frame.push(leave)
    frame.push(frame.call(enter, [], {}))


@opcode("WITH_EXCEPT_START")
def with_except_start(frame: Frame, instruction: Instruction) -> None:
    raised, leave = frame.stack[-1], frame.stack[-4]
    traceback = load_attribute(frame, raised, "__traceback__")
    frame.push(frame.call(leave, [constant(exception_class(raised)), raised, traceback], {}))
