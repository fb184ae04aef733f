"""Frames in which an instruction raises: Python goes on in their handlers, as after a break.

Only frames that handle errors, and those around them, are made real. Of the others, which the error
leaves, nothing can be told but their entries in its traceback.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Container, Sequence
from enum import Enum, auto
from functools import partial

from plait_bytecode_tracer.breaking.breaks import Continuation, Target
from plait_bytecode_tracer.breaking.live import Live, standing
from plait_bytecode_tracer.breaking.moments import passes_on
from plait_bytecode_tracer.breaking.origins import is_chain, origin_of
from plait_bytecode_tracer.breaking.places import VALUE, Place
from plait_bytecode_tracer.breaking.reads import reads_after_error
from plait_bytecode_tracer.breaking.resume import chain, raising_function, resume_call
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.table import handler_at
from plait_bytecode_tracer.exceptions.tracebacks import SUSPENDING, make_traceback
from plait_bytecode_tracer.frames.frame import Frame, instructions_of
from plait_bytecode_tracer.frames.handlers import Handler, handler_kind, is_of_torch
from plait_bytecode_tracer.residual.effects import replay_effects
from plait_bytecode_tracer.residual.rebuild import Rebuilder
from plait_bytecode_tracer.values.variables import Variable
from plait_utils import dataclass


class _Need(Enum):
    """What of a frame must be there for an error that goes through it."""

    NOTHING = auto()
    STACK = auto()
    """Managers of torch's that are left, or an exception that is being handled."""
    ALL = auto()
    """Code of the user's own runs in it."""


@dataclass(frozen=True, slots=True)
class Thrown:
    """How Python goes on where an instruction raises."""

    left: tuple[Frame, ...]
    """The frames that the error just leaves, innermost first."""
    continuation: Continuation | None
    """Takes the error among its values, and raises it in the other frames; None: there are none."""

    def traceback(self, tail: types.TracebackType | None) -> types.TracebackType | None:
        """The error's traceback when it has left these frames."""
        made = tail
        for frame in self.left:
            code, offset = _origin(frame)
            if not code.co_filename.startswith("<plait"):
                line = frame.line_at(frame.instruction)
                made = make_traceback(code, frame.function.globals, (offset, line), made)
        return made


def throw(running: Sequence[Frame], rebuilder: Rebuilder) -> Thrown:
    """Write how an error goes on that an instruction raises, after the effects before it.

    Args:
        running: the frames that run, that of the instruction first.
        rebuilder: writes the effects, and the frames. The error is to come after the outputs of
            the graph.

    Raises TraceBreakError where a frame cannot be made real.
    """
    frames = [*itertools.takewhile(lambda frame: not is_chain(frame.code), running)]
    rebuilder.state.frames.running[:] = reversed(frames)
    needs = _needs(frames)
    count = next((n for n, need in enumerate(needs) if need is not _Need.NOTHING), len(frames))
    live = [
        _live(each, rebuilder, need, is_innermost=n == 0)
        for n, (each, need) in enumerate(zip(frames[count:], needs[count:], strict=True))
    ]
    replay_effects(rebuilder)
    left = tuple(frames[:count])
    if not live:
        return Thrown(left, None)
    inner, outers = live[0], live[1:]
    values = [*inner.stack, f"_out[{len(rebuilder.outputs)}]", *inner.rest]
    for outer in outers:
        values += outer.values
    rebuilder.lines.append(f"return _step(_resume[0], [{', '.join(values)}])")
    target = Target(None, partial(_chained, inner.place, [outer.place for outer in outers]))
    return Thrown(left, Continuation(False, (target,)))


def _chained(inner: Place, outers: Sequence[Place]) -> types.FunctionType:
    return chain([raising_function(inner), *map(resume_call, outers)], outers)


def _needs(frames: Sequence[Frame]) -> list[_Need]:
    needs: list[_Need] = []
    goes_on = False
    for n, frame in enumerate(frames):
        kinds = _handlers(frame)
        if goes_on or any(kinds.values()):
            goes_on = True
            needs.append(_Need.ALL)
        elif kinds or frame.handled or (needs and needs[-1] is not _Need.NOTHING):
            needs.append(_Need.STACK)
        else:
            needs.append(_Need.NOTHING)
        if needs[-1] is _Need.NOTHING:
            continue
        if frame.code.co_flags & SUSPENDING or frame.namespace is not None:
            raise TraceBreakError("GB0001", "an error that goes through a generator or a class")
        if n + 1 < len(frames) and not (frame.parent is frames[n + 1] and passes_on(frame)):
            raise TraceBreakError("GB0001", "an error that is handled inside of an operation")
    return needs


def _handlers(frame: Frame) -> dict[int, bool]:
    """The handlers around a frame's instruction, and whether they do what the user wrote; but
    those that only end another handler."""
    code, found = frame.code, {}
    handler = handler_at(code, frame.instruction.offset)
    while handler is not None:
        kind = handler_kind(code, handler.target)
        if kind is not Handler.CLEANUP:
            is_torch = kind is Handler.WITH and is_of_torch(frame.stack[handler.depth - 1])
            found[handler.target] = not is_torch
        handler = handler_at(code, handler.target)
    return found


def _live(frame: Frame, rebuilder: Rebuilder, need: _Need, *, is_innermost: bool) -> Live:
    values = frame.stack
    if is_innermost:
        handler = handler_at(frame.code, frame.instruction.offset)
        values = values[: 0 if handler is None else handler.depth]
    if need is _Need.ALL or frame.handled or _handlers(frame):
        read: Container[str] | None = ()
        if need is _Need.ALL:
            offset = frame.instruction.offset
            read = reads_after_error(frame.code, offset, may_return=not is_innermost)
        wanted = None if read is None else partial(_is_read, read)
        return standing(
            frame, rebuilder, frame.instruction, values, is_innermost=False, wanted=wanted
        )
    code, offset = _origin(frame)
    instructions, by_offset = instructions_of(code)
    count = len(values)
    place = Place(code, frame.function.globals, None, offset, (VALUE,) * count, (), ())
    return Live(place, instructions[by_offset[offset]], ["None"] * count, [])


def _is_read(read: Container[str], name: str, _: Variable) -> bool:
    return name in read


def _origin(frame: Frame) -> tuple[types.CodeType, int]:
    """The user's code of a frame, and the offset there."""
    code, offset = frame.code, frame.instruction.offset
    origin = origin_of(code)
    if origin is None:
        return code, offset
    if origin.offsets[offset] < 0:
        raise TraceBreakError("GB0001", "an error in the midst of an instruction")
    return origin.code, origin.offsets[offset]
