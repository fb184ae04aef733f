"""`await`, asynchronous `for` and `with`."""

from __future__ import annotations

from dis import Instruction

from plait_bytecode_tracer.exceptions.raising import PythonError, exception_class, fails
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.frames.generators import awaitable
from plait_bytecode_tracer.objects.objects import special_method
from plait_bytecode_tracer.opcodes.registry import opcode
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.variables import Variable


@opcode("GET_AWAITABLE")
def get_awaitable(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop()
    origin = {1: "__aenter__", 2: "__aexit__"}.get(instruction.arg or 0)
    try:
        found = awaitable(frame, value)
    except PythonError as error:
        is_type_error = issubclass(exception_class(error.value), TypeError)
        if origin is None or not is_type_error or special_method(frame, value, "__await__"):
            raise
        kind = type_of(value).__name__
        text = f"'async with' received an object from {origin} that does not implement __await__"
        fails(TypeError, f"{text}: {kind}")
    frame.push(found)


@opcode("BEFORE_ASYNC_WITH")
def before_async_with(frame: Frame, instruction: Instruction) -> None:
    manager = frame.pop()
    enter = special_method(frame, manager, "__aenter__")
    leave = special_method(frame, manager, "__aexit__")
    kind = type_of(manager).__name__
    text = f"{kind!r} object does not support the asynchronous context manager protocol"
    if enter is None:
        fails(TypeError, text)
    if leave is None:
        fails(TypeError, f"{text} (missed __aexit__ method)")
    frame.push(leave)
    frame.push(frame.call(enter, [], {}))


@opcode("GET_AITER")
def get_aiter(frame: Frame, instruction: Instruction) -> None:
    value = frame.pop()
    method = special_method(frame, value, "__aiter__")
    kind = type_of(value).__name__
    if method is None:
        text = f"'async for' requires an object with __aiter__ method, got {kind}"
        fails(TypeError, text)
    made = frame.call(method, [], {})
    if special_method(frame, made, "__anext__") is None:
        text = "'async for' received an object from __aiter__ that does not implement __anext__"
        fails(TypeError, f"{text}: {type_of(made).__name__}")
    frame.push(made)


@opcode("GET_ANEXT")
def get_anext(frame: Frame, instruction: Instruction) -> None:
    values: Variable = frame.stack[-1]
    method = special_method(frame, values, "__anext__")
    if method is None:
        kind = type_of(values).__name__
        fails(TypeError, f"'async for' requires an iterator with __anext__ method, got {kind}")
    made = frame.call(method, [], {})
    try:
        frame.push(awaitable(frame, made))
    except PythonError as error:
        if not issubclass(exception_class(error.value), TypeError):
            raise
        kind = type_of(made).__name__
        text = "'async for' received an invalid object from __anext__"
        fails(TypeError, f"{text}: {kind}")


@opcode("END_ASYNC_FOR")
def end_async_for(frame: Frame, instruction: Instruction) -> None:
    raised = frame.pop()
    if not issubclass(exception_class(raised), StopAsyncIteration):
        raise PythonError(raised, is_new=False)
    frame.pop()
