"""Tracebacks of exceptions that are raised in the trace, and what is being handled.

A traceback is known while tracing: the frames that the exception has left, and where. Where
an exception outlives the call it gets a real traceback, of the same code, lines and positions.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Generator
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.objects import exception_field, set_exception_field
from plait_bytecode_tracer.exceptions.raising import PythonError, fails
from plait_bytecode_tracer.frames.frame import Frame, constant, instructions_of, line_text
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.objects.objects import generic_attribute
from plait_bytecode_tracer.objects.writes import write_attribute
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.values.lookup import is_defined
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    FrameVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    TracebackVariable,
    Variable,
)

SUSPENDING = inspect.CO_GENERATOR | inspect.CO_COROUTINE


def handled_exception(state: TraceState) -> Variable | None:
    """What `sys.exception()` gives."""
    for frame in reversed(state.frames.running):
        if frame.handled:
            found: Variable = frame.handled[-1]
            return found
    if state.outside is None:
        expected = Mode(sys.exception, None)
        state.require(None, Kind.MODE, expected, "no exception is being handled")
        return None
    source = Source(f"{state.constants.name(sys.exception)}()", "sys.exception()")
    return state.wrap(state.outside, source)


def enter_traceback(frame: Frame, error: PythonError, offset: int) -> None:
    """Note that an exception passes through a frame, as the interpreter does."""
    if error.is_new:
        _set_context(frame, error.value)
    if not error.is_reraised and not frame.code.co_filename.startswith("<plait"):
        instructions, by_offset = instructions_of(frame.code)
        line = frame.line_at(instructions[by_offset[offset]])
        following = _read(frame, error.value, "__traceback__")
        entry = TracebackVariable(frame, offset, line, following)
        _write(frame, error.value, "__traceback__", entry)
    error.is_new = error.is_reraised = False


def _set_context(frame: Frame, value: Variable) -> None:
    """The exception that is being handled becomes the context, without making a circle."""
    handled = handled_exception(frame.state)
    if handled is None or _is_same(handled, value):
        return
    one, seen = handled, [handled]
    while (context := _read(frame, one, "__context__")) is not None:
        if _is_same(context, value):
            _write(frame, one, "__context__", constant(None))
            break
        if any(_is_same(context, other) for other in seen):
            break
        seen.append(context)
        one = context
    _write(frame, value, "__context__", handled)


def _is_same(one: Variable, other: Variable) -> bool:
    if isinstance(one, Known) and isinstance(other, Known):
        return one.value is other.value
    return one is other


def _read(frame: Frame, value: Variable, name: str) -> Variable | None:
    if isinstance(value, ObjectVariable):
        found: Variable | None = exception_field(value, name)
    else:
        found = generic_attribute(frame, value, name)
    return None if isinstance(found, Known) and found.value is None else found


def _write(frame: Frame, value: Variable, name: str, content: Variable) -> None:
    if isinstance(value, ObjectVariable):
        set_exception_field(frame, value, name, content)
        return
    write_attribute(frame, value, name, content)


def traceback_attribute(frame: Frame, owner: TracebackVariable, name: str) -> Variable | None:
    """An attribute of a traceback."""
    match name:
        case "tb_frame":
            return frame_object(owner.frame)
        case "tb_lineno":
            return constant(owner.line)
        case "tb_lasti":
            return constant(owner.offset)
        case "tb_next":
            return constant(None) if owner.following is None else owner.following
    if is_defined(types.TracebackType, name):
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a traceback")
    return None


def frame_object(frame: Frame) -> Variable:
    """The one object that a frame is for the program."""
    if frame.shown is None:
        frame.shown = FrameVariable(frame)
    return frame.shown


def frame_attribute(owner: FrameVariable, name: str) -> Variable | None:
    """An attribute of a frame of the trace; its variables are Python's alone to show."""
    frame: Frame = owner.frame
    match name:
        case "f_code" if not frame.code.co_filename.startswith("<plait"):
            return constant(frame.code)
        case "f_lineno":
            return constant(frame.last_line())
        case "clear":
            return MethodVariable(owner, name)
    if is_defined(types.FrameType, name):
        raise TraceBreakError("GB0013", f"the attribute {name!r} of a frame")
    return None


def frame_method(frame: Frame, owner: FrameVariable, name: str) -> Variable:
    """`frame.clear()`: what the frame held is gone with it, unless it still runs."""
    if name != "clear":
        raise TraceBreakError("GB0013", f"the method {name!r} of a frame")
    cleared: Frame = owner.frame
    if any(running is cleared for running in frame.state.frames.running):
        fails(RuntimeError, "cannot clear an executing frame")
    if cleared.result is None and cleared.code.co_flags & SUSPENDING:
        raise TraceBreakError("GB0013", "clear() of a generator's frame")
    return constant(None)


def raising_lines(value: Variable) -> tuple[str, ...]:
    """The user's lines through which an exception came, innermost first."""
    found: list[str] = []
    entry = exception_field(value, "__traceback__") if isinstance(value, ObjectVariable) else None
    while isinstance(entry, TracebackVariable):
        frame: Frame = entry.frame
        found.insert(0, line_text(frame.code.co_filename, entry.line, frame.code.co_name))
        entry = entry.following
    return tuple(found)


# Real tracebacks.


def _get_frame(getter: Any) -> Any:
    return getter()


@functools.lru_cache(maxsize=1024)
def _stub(code: types.CodeType, filename: str) -> types.CodeType:
    """Code with the name, lines and positions of other code, that gives its own frame."""
    made = _get_frame.__code__
    kept = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
    flags = code.co_flags & ~(kept | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE)
    return code.replace(
        co_code=made.co_code + code.co_code[len(made.co_code) :],
        co_varnames=made.co_varnames,
        co_nlocals=1,
        co_argcount=1,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_cellvars=(),
        co_freevars=(),
        co_flags=flags,
        co_stacksize=max(made.co_stacksize, code.co_stacksize),
        co_exceptiontable=b"",
    )


def _calls() -> Generator[Any, list[types.FunctionType], None]:
    """Calls the function in each list that it is sent, and gives the frame; it keeps neither."""
    given = yield None
    while True:
        given = yield given.pop()(sys._getframe)


_CALLERS: list[Generator[Any, list[types.FunctionType], None]] = []
"""Generators that wait. A frame leads to the frame that called it and so keeps what that holds,
but to none behind a generator that waits: not to the residual code, which holds the call's values.
"""


def make_traceback(
    code: types.CodeType,
    namespace: dict[str, Any],
    place: tuple[int, int],
    following: types.TracebackType | None,
) -> types.TracebackType:
    """A traceback entry at an offset and line of a function's code."""
    function = types.FunctionType(_stub(code, code.co_filename), namespace)
    try:
        caller = _CALLERS.pop()
    except IndexError:
        caller = _calls()
        next(caller)
    frame = caller.send([function])
    _CALLERS.append(caller)
    frame.clear()
    return types.TracebackType(following, frame, *place)
