"""Generators and coroutines of the trace: sent to, thrown into, closed, awaited."""

from __future__ import annotations

import inspect
import sys
import types
from typing import NoReturn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import (
    PythonError,
    exception_class,
    fails,
    is_exception,
    python_error,
)
from plait_bytecode_tracer.exceptions.tracebacks import enter_traceback, frame_object
from plait_bytecode_tracer.frames.frame import Frame, constant, instructions_of
from plait_bytecode_tracer.objects.attributes import find_attribute, load_attribute
from plait_bytecode_tracer.objects.iteration import is_read, next_item
from plait_bytecode_tracer.objects.objects import special_method
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.lookup import is_defined
from plait_bytecode_tracer.values.variables import (
    CoroutineVariable,
    GeneratorVariable,
    IteratorVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    Variable,
)

Suspending = GeneratorVariable | CoroutineVariable
_METHODS = {
    GeneratorVariable: ("send", "throw", "close", "__next__", "__iter__"),
    CoroutineVariable: ("send", "throw", "close", "__await__"),
}


def generator_attribute(owner: Suspending, name: str) -> Variable | None:
    """An attribute of a generator or coroutine."""
    frame: Frame = owner.frame
    prefix = "cr_" if isinstance(owner, CoroutineVariable) else "gi_"
    if name in _METHODS[type(owner)]:
        return MethodVariable(owner, name)
    if name in ("__name__", "__qualname__"):
        names = frame.function.names or (frame.code.co_name, frame.code.co_qualname)
        return constant(names[name == "__qualname__"])
    match name.removeprefix(prefix) if name.startswith(prefix) else "":
        case "running":
            return constant(frame.running)
        case "code" if not frame.code.co_filename.startswith("<plait"):
            return constant(frame.code)
        case "frame":
            return constant(None) if frame.result is not None else frame_object(frame)
        case "suspended":
            return constant(frame.index > 0 and frame.result is None and not frame.running)
    kind = types.CoroutineType if prefix == "cr_" else types.GeneratorType
    if is_defined(kind, name):
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a generator")
    return None


def generator_method(caller: Frame, owner: Suspending, name: str, args: list[Variable]) -> Variable:
    """A call of a method of a generator or coroutine."""
    frame: Frame = owner.frame
    if name == "__iter__":
        return owner
    if name == "__await__":
        raise TraceBreakError("GB0002", "__await__() of a coroutine, called by name")
    if name == "close":
        return close(frame)
    if name == "throw":
        found = throw(frame, _thrown(caller, args))
    else:
        sent = args[0] if name == "send" and args else None
        found = send(frame, sent)
    return found if found is not None else stop_iteration(owner)


def stop_iteration(owner: Suspending) -> NoReturn:
    """Raise StopIteration with what a generator has returned."""
    result = owner.frame.result
    is_none = result is None or (isinstance(result, Known) and result.value is None)
    fails(StopIteration, *([] if is_none else [result]))


def send(frame: Frame, value: Variable | None) -> Variable | None:
    """`generator.send(value)`: what it yields next; None where it has returned."""
    is_none = value is None or (isinstance(value, Known) and value.value is None)
    if frame.result is None and frame.index == 0 and not is_none:
        fails(TypeError, f"can't send non-None value to a just-started {frame.kind}")
    if frame.result is not None and frame.kind == "coroutine" and not frame.running:
        fails(RuntimeError, "cannot reuse already awaited coroutine")
    frame.sent = value
    return frame.next_yielded()


def _thrown(frame: Frame, args: list[Variable]) -> Variable:
    """The exception that `throw(type, value, traceback)` means."""
    if len(args) > 1 and frame.is_312:
        raise TraceBreakError("GB0002", "throw() of a type and a value, which warns")
    raised = args[0]
    value = args[1] if len(args) > 1 else constant(None)
    if isinstance(raised, Known) and isinstance(raised.value, type):
        if not issubclass(raised.value, BaseException):
            text = "exceptions must be classes or instances deriving from BaseException"
            fails(TypeError, f"{text}, not type")
        if is_exception(value):
            return value
        given = [] if isinstance(value, Known) and value.value is None else [value]
        return frame.call(raised, given, {})
    if not is_exception(raised):
        text = "exceptions must be classes or instances deriving from BaseException"
        fails(TypeError, f"{text}, not {type_of(raised).__name__}")
    return raised


def throw(frame: Frame, raised: Variable) -> Variable | None:
    """Raise an exception in a generator's frame where it waits; the next yield or None."""
    if frame.running:
        fails(ValueError, f"{frame.kind} already executing")
    if frame.result is not None:
        if frame.kind == "coroutine":
            fails(RuntimeError, "cannot reuse already awaited coroutine")
        raise _passing(raised)
    if frame.index == 0:
        frame.result = Known(None)
        error, instructions = _passing(raised), instructions_of(frame.code)[0]
        start = next(n for n, i in enumerate(instructions) if i.opname == "RETURN_GENERATOR")
        enter_traceback(frame, error, instructions[start + _AHEAD].offset)
        raise error
    receiver = _delegate(frame)
    return (
        _raise_in(frame, PythonError(raised), delegated=False)
        if receiver is None
        else _throw_past(frame, receiver, raised)
    )


def _throw_past(frame: Frame, receiver: Variable, raised: Variable) -> Variable | None:
    """Throw into what a frame waits for, and where that does not yield, go on in the frame."""
    is_exit = issubclass(exception_class(raised), GeneratorExit)
    thrower: Variable | None = None
    frame.running = True
    try:
        thrower = None if is_exit else _thrower(frame, receiver)
        if is_exit:
            _close_receiver(frame, receiver)
            raise PythonError(raised)
        if isinstance(receiver, Suspending):
            found = throw(receiver.frame, raised)
        else:
            found = _thrown_by(frame, thrower, raised)
    except PythonError as error:
        frame.running = False
        is_result = frame.is_312 or isinstance(receiver, Suspending) or thrower is not None
        if is_result and issubclass(exception_class(error.value), StopIteration):
            return _go_on_after(frame, load_attribute(frame, error.value, "value"))
        return _raise_in(frame, error, delegated=True)
    finally:
        frame.running = False
    if found is not None:
        return found
    result = receiver.frame.result if isinstance(receiver, Suspending) else None
    return _go_on_after(frame, result or constant(None))


def _delegate(frame: Frame) -> Variable | None:
    """What a frame that waits in `yield from` or `await` waits for."""
    argument = (frame.instruction.arg or 0) & 3
    return frame.stack[-2] if frame.instruction.opname == "RESUME" and argument >= 2 else None


def _close_receiver(frame: Frame, receiver: Variable) -> None:
    """Close what a frame waits for, before the frame itself is closed."""
    if isinstance(receiver, Suspending):
        close(receiver.frame)
        return
    try:
        method = find_attribute(frame, receiver, "close")
    except PythonError as error:
        if not issubclass(exception_class(error.value), AttributeError):
            raise TraceBreakError("GB0002", "an exception that only a hook is told of") from error
        method = None
    if method is not None:
        frame.call(method, [], {})


_AHEAD = int(sys.version_info >= (3, 13))
"""How far the place of a generator that waits lies behind the instruction that it ran last."""


def _passing(raised: Variable) -> PythonError:
    """An exception that C passes on: what is being handled does not become its context."""
    error = PythonError(raised, is_new=False)
    error.is_reraised = False
    return error


def _thrower(frame: Frame, receiver: Variable) -> Variable | None:
    """The method by which an exception is thrown into what a frame waits for, if it has one."""
    if isinstance(receiver, Suspending):
        return None
    try:
        return find_attribute(frame, receiver, "throw")
    except PythonError as error:
        if not issubclass(exception_class(error.value), AttributeError):
            raise
        return None


def _thrown_by(frame: Frame, method: Variable | None, raised: Variable) -> Variable:
    if method is None:
        raise PythonError(raised)
    return frame.call(method, [raised], {})


def _go_on_after(frame: Frame, value: Variable) -> Variable | None:
    """What a frame waited for has returned a value."""
    instructions, by_offset = instructions_of(frame.code)
    jump = instructions[frame.index + 1]
    send_ = instructions[by_offset[jump.argval]]
    frame.pop()
    if not frame.is_312:
        frame.pop()
    frame.push(value)
    frame.index = frame.index_of(send_.argval)
    return frame.next_yielded()


def _raise_in(frame: Frame, error: PythonError, *, delegated: bool) -> Variable | None:
    waiting = instructions_of(frame.code)[0][frame.index - 1 + _AHEAD]
    if not delegated or frame.is_312:
        frame.pop()  # what would have been sent
    error.is_new = bool(frame.handled)  # what the generator handles itself, no caller of it
    error.is_reraised = False
    frame.state.frames.running.append(frame)
    try:
        frame.index = frame.handle(error, waiting.offset)
    except PythonError as left:
        frame.leave(left)
    finally:
        frame.state.frames.running.pop()
    return frame.next_yielded()


def close(frame: Frame) -> Variable:
    """`generator.close()`."""
    if frame.result is not None:
        return constant(None)
    try:
        found = throw(frame, python_error(GeneratorExit()).value)
    except PythonError as error:
        if not issubclass(exception_class(error.value), GeneratorExit | StopIteration):
            raise
        return constant(None)
    if found is not None:
        fails(RuntimeError, f"{frame.kind} ignored GeneratorExit")
    returned = frame.result if sys.version_info >= (3, 13) else None
    return constant(None) if returned is None else returned


# Waiting for others.


def send_to(frame: Frame, receiver: Variable, value: Variable) -> tuple[Variable | None, Variable]:
    """Send to what `yield from` or `await` waits for: what it yields, else what it returned."""
    if isinstance(receiver, Suspending):
        found = send(receiver.frame, value)
        return found, receiver.frame.result or constant(None)
    is_none = isinstance(value, Known) and value.value is None
    try:
        if not is_none:
            method = load_attribute(frame, receiver, "send")
            return frame.call(method, [value], {}), constant(None)
        next_ = None
        if isinstance(receiver, ObjectVariable | Known) and not is_read(frame, receiver):
            next_ = special_method(frame, receiver, "__next__")
        if next_ is None:
            return next_item(frame, receiver), constant(None)
        return frame.call(next_, [], {}), constant(None)
    except PythonError as error:
        if not issubclass(exception_class(error.value), StopIteration):
            raise
        return None, load_attribute(frame, error.value, "value")


def awaitable(frame: Frame, value: Variable) -> Variable:
    """What `await value` waits for."""
    if isinstance(value, CoroutineVariable):
        waits = value.frame.index and value.frame.result is None
        if value.frame.running or (waits and _delegate(value.frame) is not None):
            fails(RuntimeError, "coroutine is being awaited already")
        return value
    if isinstance(value, GeneratorVariable):
        if value.frame.code.co_flags & inspect.CO_ITERABLE_COROUTINE:
            return value
        fails(TypeError, "object generator can't be used in 'await' expression")
    kind = type_of(value).__name__
    method = special_method(frame, value, "__await__")
    if method is None:
        fails(TypeError, f"object {kind} can't be used in 'await' expression")
    found = frame.call(method, [], {})
    if isinstance(found, CoroutineVariable):
        fails(TypeError, "__await__() returned a coroutine")
    has_next = isinstance(found, IteratorVariable) or (
        special_method(frame, found, "__next__") is not None
    )
    if not has_next:
        fails(TypeError, f"__await__() returned non-iterator of type {type_of(found).__name__!r}")
    return found
