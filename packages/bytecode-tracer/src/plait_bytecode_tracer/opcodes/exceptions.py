"""Raising and handling exceptions; `with` blocks."""

from __future__ import annotations

from dis import Instruction

from plait_bytecode_tracer.calls import call
from plait_bytecode_tracer.containers import plain_value
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame, constant
from plait_bytecode_tracer.objects import special_method
from plait_bytecode_tracer.opcodes.registry import opcode
from plait_bytecode_tracer.raising import PythonError, exception_class, fails
from plait_bytecode_tracer.variables import Known, ObjectVariable, Variable


@opcode("RAISE_VARARGS")
def raise_varargs(frame: Frame, instruction: Instruction) -> None:
    count = instruction.arg or 0
    cause = frame.pop() if count == 2 else None
    if count == 0:
        if not frame.state.handled:
            fails(RuntimeError, "No active exception to reraise")
        raise PythonError(frame.state.handled[-1])
    raised = frame.pop()
    if isinstance(raised, Known) and isinstance(raised.value, type):
        raised = call(frame, raised, [], {})
    exception_class(raised)
    if cause is not None and isinstance(raised, ObjectVariable):
        if isinstance(cause, Known) and isinstance(cause.value, type):
            cause = call(frame, cause, [], {})
        raised.attributes["__cause__"] = cause
        raised.attributes["__suppress_context__"] = constant(True)
    if frame.state.handled and isinstance(raised, ObjectVariable):
        raised.attributes.setdefault("__context__", frame.state.handled[-1])
    raise PythonError(raised)


@opcode("PUSH_EXC_INFO")
def push_exc_info(frame: Frame, instruction: Instruction) -> None:
    raised = frame.pop()
    handled = frame.state.handled
    frame.push(handled[-1] if handled else constant(None))
    frame.push(raised)
    handled.append(raised)
    frame.handling += 1


@opcode("POP_EXCEPT")
def pop_except(frame: Frame, instruction: Instruction) -> None:
    frame.pop()
    frame.state.handled.pop()
    frame.handling -= 1


@opcode("CHECK_EXC_MATCH")
def check_exc_match(frame: Frame, instruction: Instruction) -> None:
    wanted = plain_value(frame.pop())
    raised = exception_class(frame.stack[-1])
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        fails(TypeError, "catching classes that do not inherit from BaseException is not allowed")
    frame.push(constant(issubclass(raised, kinds)))


@opcode("RERAISE")
def reraise(frame: Frame, instruction: Instruction) -> None:
    raise PythonError(frame.pop())


@opcode("BEFORE_WITH")
def before_with(frame: Frame, instruction: Instruction) -> None:
    manager = frame.pop()
    leave = special_method(frame, manager, "__exit__")
    enter = special_method(frame, manager, "__enter__")
    if enter is None or leave is None:
        raise TraceBreakError("GB0002", "a context manager that cannot be traced")
    frame.push(leave)
    frame.push(call(frame, enter, [], {}))


@opcode("WITH_EXCEPT_START")
def with_except_start(frame: Frame, instruction: Instruction) -> None:
    raised, leave = frame.stack[-1], frame.stack[-4]
    frame.push(call(frame, leave, [constant(exception_class(raised)), raised, TRACEBACK], {}))


class _Traceback(Variable):
    """The traceback of a traced exception, which only Python could tell."""

    __slots__ = ()


TRACEBACK = _Traceback()
