"""Graph breaks: what Python does where the trace ends, at any depth of calls.

The instruction that breaks runs natively in its own frame, and that frame in those of its
callers: each live frame becomes a break function (see `resume`) whose pending call calls
the break function of the frame inside it. All stop right after the instruction. What is
left of all live frames then is one function, the continuation, which is traced as a whole:
a break costs one graph more however deep it lies. In it each frame calls the rest of the
frame inside it, where the call stood: within its loops, handlers and `with` blocks.

Continuations belong to places in the user's code. A break in a loop goes on, iteration
after iteration, in one continuation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from plait_bytecode_tracer.breaking.live import Live, live_frame
from plait_bytecode_tracer.breaking.moments import Known, live_frames, passes_on
from plait_bytecode_tracer.breaking.places import MISSING, VALUE
from plait_bytecode_tracer.breaking.resume import (
    break_function,
    chain,
    resume_call,
    resume_function,
)
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.effects import Exits, exits
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.residual.effects import replay_effects
from plait_bytecode_tracer.residual.rebuild import Rebuilder
from plait_bytecode_tracer.residual.steps import Thunk
from plait_bytecode_tracer.tensors.ambient import left_switched
from plait_utils import dataclass

MAX_CONTINUATIONS = 64
"""In how many places a function is continued by compiled code; elsewhere by plain Python."""


@dataclass(frozen=True, slots=True)
class Target:
    """A function to go on with, made when it is needed."""

    key: Hashable
    """Equal for targets that are the same function."""
    make: Callable[[], FunctionType]


@dataclass(frozen=True, slots=True)
class Continuation:
    """What follows a graph break: how Python goes on."""

    is_compiled: bool
    targets: tuple[Target, ...]
    """For each exit of the instruction; then for frames around it, fewer and fewer of them."""
    route: tuple[str, ...] = ()
    """Python that tells which of them goes on, of what `_left` the instruction's frames."""


# How to go on.


def go_on(frame: Frame, rebuilder: Rebuilder, known: Known) -> Continuation:
    """Write what follows a break at a frame's instruction; what to compile next.

    Raises TraceBreakError where a live value or frame cannot be made real.
    """
    frames = live_frames(frame)
    if not all(map(passes_on, frames[:-1])):
        raise TraceBreakError("GB0001", "a call that is made by more than an instruction")
    rebuilder.state.frames.running[:] = reversed(frames)
    live = [live_frame(each, rebuilder, is_innermost=each is frame) for each in frames]
    replay_effects(rebuilder)
    left = exits(live[0].instruction)
    if left is not None:
        made = _targets(live, left)
        fresh = [target for target in made if target.key not in known.keys]
        if known.count + len(fresh) <= MAX_CONTINUATIONS:
            return Continuation(True, made, _write(live, left, rebuilder))
    if len(live) > 1:
        raise TraceBreakError("GB0001", "more continuations than are compiled")
    inner = live[0]
    make = partial(resume_function, inner.place, inner.first(), inner.place.stack)
    if inner.called is not None:
        inner.stack.append(inner.called)
        make = partial(resume_call, inner.place)
    rebuilder.lines.append(f"return _step(_resume[0], [{', '.join(inner.values)}])")
    return Continuation(False, (Target(None, make),))


# Which functions go on.


def _targets(live: Sequence[Live], left: Exits) -> tuple[Target, ...]:
    inner, outers = live[0], live[1:]
    kept = inner.place.stack
    if inner.called is None:
        kept = kept[: len(kept) - left.operands]
    found = []
    for number, results in enumerate(left.results):
        stack = (*kept, *[VALUE] * results)
        first = partial(resume_function, inner.place, inner.exit_offset(number), stack)
        found.append(_target(("exit", number), first, inner, outers))
    for at, outer in enumerate(outers, 1):  # the frames inside it have returned a value
        stack = (*outer.place.stack, VALUE)
        first = partial(resume_function, outer.place, outer.offset_after(), stack)
        found.append(_target(("value", 0), first, outer, live[at + 1 :]))
    return tuple(found)


def _target(
    what: Hashable, first: Callable[[], FunctionType], inner: Live, outers: Sequence[Live]
) -> Target:
    key = (what, inner.place.key, *(outer.place.key for outer in outers))

    def make() -> FunctionType:
        places = [outer.place for outer in outers]
        return chain([first(), *map(resume_call, places)], places)

    return Target(key, make)


# What runs natively.


def _write(live: Sequence[Live], left: Exits, rebuilder: Rebuilder) -> tuple[str, ...]:
    """Run the instruction in its frame, inside of the frames around it; the route from there."""
    state, name = rebuilder.state, rebuilder.state.constants.name
    switched = left_switched(state.grad_enabled_before, state.grad_enabled, state.ambient)
    before = "" if switched is None else f", {name(switched)}"
    inner, outers = live[0], live[1:]
    if inner.called is None:
        breaking = break_function(inner.place, inner.first(), inner.place.stack, left)
        stack = inner.stack
    else:
        breaking, stack = _pending_call(inner, inner.called)
    function, given = name(breaking), ["_Stopped", *stack, *inner.rest]
    for depth, outer in enumerate(outers):
        called = f"_call{depth}"
        made = f"{name(Thunk)}({function}, [{', '.join(given)}])"
        rebuilder.lines.append(f"{called} = {made}")
        pending, stack = _pending_call(outer, called)
        function, given = name(pending), ["_Stopped", *stack, *outer.rest]
    rebuilder.lines.append(f"return _step({function}, [{', '.join(given)}], _route{before})")
    return _route(len(left.results), [len(outer.stack) for outer in outers], name(without))


def _route(exits_: int, places: Sequence[int], without_: str) -> tuple[str, ...]:
    """From the outermost frame inwards, which have stopped, and with what to go on.

    `places` are those of the pending calls' results among what frames around it hold.
    """
    count = len(places)
    lines = ["if _left.__class__ is not _Stopped: return _left", f"_w{count} = _left"]
    others: list[str] = []
    for at in range(count, 0, -1):
        place = places[at - 1]
        lines.append(f"_w{at} = _w{at}.values")
        lines.append(f"_w{at - 1} = _w{at}[{place}]")
        arguments = ", ".join([f"*_w{at}", *others])
        gone = f"return _step(_resume[{exits_ + at - 1}], [{arguments}])"
        lines.append(f"if _w{at - 1}.__class__ is not _Stopped: {gone}")
        others.insert(0, f"*{without_}(_w{at}, {place})")
    arguments = ", ".join(["*_w0.values", *others])
    return (*lines, f"return _step(_resume[_w0.exit], [{arguments}])")


def without(values: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    """Values without the one at a place: the result of the pending call."""
    return values[:place] + values[place + 1 :]


def _pending_call(live: Live, called: str) -> tuple[FunctionType, list[str]]:
    """The break function of a frame that waits for a call, and its stack: the call is `called`."""
    opname, argument = live.instruction.opname, live.instruction.arg or 0
    if opname == "CALL_FUNCTION_EX":
        arguments = ["()", *["{}"] * (argument & 1)]
    else:
        arguments = [*["None"] * argument, *["()"] * (opname == "CALL_KW")]
    pair = [VALUE, MISSING] if sys.version_info >= (3, 13) else [MISSING, VALUE]
    stack = (*live.place.stack, *pair, *[VALUE] * len(arguments))
    left = exits(live.instruction)
    assert left is not None
    function = break_function(live.place, live.first(), stack, left)
    return function, [*live.stack, called, *arguments]
