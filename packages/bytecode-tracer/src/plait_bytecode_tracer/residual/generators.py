"""Code that makes generators and coroutines of the trace real, in the state they are in.

One that has begun is made of a function that goes on at the `yield` where it waits. It is
advanced once, to that very instruction: what is sent to it or thrown into it then finds the
handlers, the variables and the line that it would.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from plait_bytecode_tracer.breaking.live import standing
from plait_bytecode_tracer.breaking.resume import resume_generator
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant, instructions_of
from plait_bytecode_tracer.values.variables import FunctionVariable, Known

if TYPE_CHECKING:
    from plait_bytecode_tracer.residual.rebuild import Rebuilder

_VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def new_generator(rebuilder: Rebuilder, frame: Frame) -> str:
    """The name of a generator or coroutine that runs a frame of the trace."""
    if frame.running:
        raise TraceBreakError("GB0011", "a generator that runs leaves the traced code")
    if frame.result is not None:
        return _finished(rebuilder, frame)
    return _new(rebuilder, frame) if frame.index == 0 else _begun(rebuilder, frame)


def _new(rebuilder: Rebuilder, frame: Frame) -> str:
    """The call that makes it."""
    code = frame.code
    count = code.co_argcount + code.co_kwonlyargcount
    count += sum(bool(code.co_flags & flag) for flag in (4, 8))
    plain = code.replace(
        co_flags=code.co_flags & ~_VARIADIC,
        co_kwonlyargcount=0,
        co_argcount=count,
        co_posonlyargcount=0,
    )
    names = frame.function.names or (code.co_name, code.co_qualname)
    function = FunctionVariable(plain, frame.function.globals, names[0])
    function.attributes["__qualname__"] = constant(names[1])
    function.closure = frame.function.closure
    held = (frame.locals.get(name, constant(None)) for name in code.co_varnames[:count])
    arguments = [rebuilder.value(value) for value in held]
    return rebuilder.assign(f"{rebuilder.value(function)}({', '.join(arguments)})")


def _finished(rebuilder: Rebuilder, frame: Frame) -> str:
    """One that has returned: closed before it began, which nothing can tell apart."""
    held = Frame(frame.state, frame.function, {})
    name = _new(rebuilder, held)
    rebuilder.lines.append(f"{name}.close()")
    return name


def _begun(rebuilder: Rebuilder, frame: Frame) -> str:
    waits = instructions_of(frame.code)[0][frame.index - 1]
    if waits.opname != "YIELD_VALUE":
        raise TraceBreakError("GB0011", "a generator that waits at no yield")
    stack = [*frame.stack[:-1], Known(None)]
    live = standing(frame, rebuilder, waits, stack, is_innermost=False)
    function = resume_generator(live.place)
    if frame.function.names is not None:
        function.__name__, function.__qualname__ = frame.function.names
    made = f"{rebuilder.state.constants.name(function)}({', '.join(live.values)})"
    name = rebuilder.assign(made)
    rebuilder.lines.append(f"{name}.send(None)")
    return name
