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
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass, field
from dis import Instruction
from functools import partial
from types import FunctionType
from typing import Any

from plait_bytecode_tracer.effects import LOOP_END, Exits, exits
from plait_bytecode_tracer.errors import GraphBreak, TraceBreakError
from plait_bytecode_tracer.frame import NULL, Frame, Handled, instructions_of
from plait_bytecode_tracer.rebuild import Rebuilder
from plait_bytecode_tracer.resume import (
    CELL_PREFIX,
    HANDLED,
    MISSING,
    STACK_PREFIX,
    VALUE,
    Place,
    Thunk,
    break_function,
    chain,
    is_chain,
    origin_of,
    resume_call,
    resume_function,
)
from plait_bytecode_tracer.sources import Access
from plait_bytecode_tracer.variables import CellVariable

MAX_CONTINUATIONS = 64
"""In how many places a function is continued by compiled code; elsewhere by plain Python."""
_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
_BEFORE_CALLS = ("PRECALL", "KW_NAMES", "EXTENDED_ARG")


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


@dataclass(slots=True)
class Known:
    """The continuations that a function has by now."""

    keys: Container[Hashable] = field(default_factory=frozenset)
    count: int = 0


# Where to break.


def break_steps(innermost: Frame, reason: GraphBreak) -> list[int]:
    """Steps of the trace at which it can end, innermost frame first."""
    if reason.code == "GB0014":
        return []
    live = _live_frames(innermost)
    found: list[int] = []
    for position, frame in enumerate(live):
        looks_here = reason.code == "GB0013" and position == 0
        looks_here |= frame.namespace is not None  # the body of a class, which has no locals
        inner = position + 1 < len(live)
        if looks_here or (inner and exits(frame.instruction) is None):
            continue
        if all(_passes_on(frame) for frame in live[position:-1]):
            found.append(frame.step)
    return found


def _live_frames(innermost: Frame) -> list[Frame]:
    """A frame and those that called it, up to the call; what called continuations is left out."""
    found = [innermost]
    while (parent := found[-1].parent) is not None and not is_chain(parent.code):
        found.append(parent)
    return found


def _passes_on(frame: Frame) -> bool:
    """Whether what a frame returns is what the pending call of its caller gives."""
    caller = frame.parent
    return caller is not None and frame.is_direct and caller.instruction.opname in _CALLS


# How to go on.


@dataclass(slots=True)
class _Live:
    """A live frame at the break, as Python text."""

    place: Place
    instruction: Instruction
    stack: list[str]
    """Values without NULLs; those of what is handled are the exceptions."""
    rest: list[str]
    """The locals and the cells."""
    called: str | None = None
    """What a call that a continuation makes anew calls, without arguments."""

    @property
    def values(self) -> list[str]:
        return [*self.stack, *self.rest]

    def offset_after(self, steps: int = 1, offset: int | None = None) -> int:
        """The offset so many instructions behind the frame's, or behind another."""
        instructions, by_offset = instructions_of(self.place.code)
        index = by_offset[self.instruction.offset if offset is None else offset] + steps
        return instructions[index].offset if index < len(instructions) else 0

    def first(self) -> int:
        """The offset of the first instruction of a call: it names the keywords."""
        instructions, by_offset = instructions_of(self.place.code)
        index = by_offset[self.instruction.offset]
        while index and instructions[index - 1].opname in _BEFORE_CALLS:
            index -= 1
        return instructions[index].offset

    def exit_offset(self, number: int) -> int:
        """Where Python goes on after an exit of the instruction."""
        if number == 0:
            return self.offset_after()
        steps = LOOP_END if self.instruction.opname == "FOR_ITER" else 0
        return self.offset_after(steps, self.instruction.argval)


def go_on(frame: Frame, rebuilder: Rebuilder, known: Known) -> Continuation:
    """Write what follows a break at a frame's instruction; what to compile next.

    Raises TraceBreakError where a live value or frame cannot be made real.
    """
    frames = _live_frames(frame)
    live = [_live(each, rebuilder, is_innermost=each is frame) for each in frames]
    rebuilder.effects()
    left = exits(live[0].instruction)
    if left is not None:
        made = _targets(live, left)
        fresh = [target for target in made if target.key not in known.keys]
        if known.count + len(fresh) <= MAX_CONTINUATIONS:
            _write(live, left, rebuilder)
            return Continuation(True, made)
    if len(live) > 1:
        raise TraceBreakError("GB0001", "more continuations than are compiled")
    inner = live[0]
    make = partial(resume_function, inner.place, inner.first(), inner.place.stack)
    if inner.called is not None:
        inner.stack.append(inner.called)
        make = partial(resume_call, inner.place)
    rebuilder.lines.append(f"return _resume[0]({', '.join(inner.values)})")
    return Continuation(False, (Target(None, make),))


def _live(frame: Frame, rebuilder: Rebuilder, *, is_innermost: bool) -> _Live:
    code, offset = frame.code, frame.instruction.offset
    origin = origin_of(code)
    if origin is not None:
        code, offset = origin.code, origin.offsets[offset]
        if offset < 0:
            raise TraceBreakError("GB0001", "a break in the midst of an instruction")
    instructions, by_offset = instructions_of(code)
    active = list(frame.handled)
    kinds: list[str] = []
    stack: list[str] = []
    for value in frame.stack:
        if value is NULL:
            kinds.append(MISSING)
        elif isinstance(value, Handled):
            is_active = bool(active) and value.raised is active[0]
            kinds.append(HANDLED if is_active else VALUE)
            stack.append(rebuilder.value(active.pop(0)) if is_active else "None")
        else:
            kinds.append(VALUE)
            stack.append(rebuilder.value(value))
    held = {
        name: rebuilder.value(value)
        for name, value in frame.locals.items()
        if not name.startswith((STACK_PREFIX, CELL_PREFIX)) and value is not NULL
    }
    cells = {name: frame.cells[name] for name in code.co_cellvars if name in frame.cells}
    closure = _closure(frame, code.co_freevars)
    if closure is None:
        cells |= {name: _free_cell(frame, name) for name in code.co_freevars}
    called = None
    if is_innermost and origin is not None and frame.instruction.offset in origin.calls:
        del kinds[-2:]
        called = rebuilder.assign(f"{rebuilder.state.constants.name(Thunk)}({stack.pop()}, ())")
    names = tuple(kinds), tuple(held), tuple(cells)
    place = Place(code, frame.function.globals, closure, offset, *names)
    rest = [*held.values(), *(rebuilder.value(cell) for cell in cells.values())]
    return _Live(place, instructions[by_offset[offset]], stack, rest, called)


def _free_cell(frame: Frame, name: str) -> CellVariable:
    if name in frame.cells:
        return frame.cells[name]
    return dict(zip(frame.code.co_freevars, frame.function.closure, strict=True))[name]


def _closure(frame: Frame, names: Sequence[str]) -> tuple[Any, ...] | None:
    """The cells of a function that stays the same in each call; else None."""
    found: list[Any] = []
    for name in names:
        cell = _free_cell(frame, name)
        source = cell.source.base if cell.source is not None else None
        if cell.original is None or source is None or source.access is not Access.CONSTANT:
            return None
        found.append(cell.original)
    return tuple(found)


# Which functions go on.


def _targets(live: Sequence[_Live], left: Exits) -> tuple[Target, ...]:
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
    what: Hashable, first: Callable[[], FunctionType], inner: _Live, outers: Sequence[_Live]
) -> Target:
    key = (what, inner.place.key, *(outer.place.key for outer in outers))

    def make() -> FunctionType:
        places = [outer.place for outer in outers]
        return chain([first(), *map(resume_call, places)], places)

    return Target(key, make)


# What runs natively.


def _write(live: Sequence[_Live], left: Exits, rebuilder: Rebuilder) -> None:
    """Run the instruction in its frame, inside of the frames around it, and go on after it."""
    name = rebuilder.state.constants.name
    inner, outers = live[0], live[1:]
    if inner.called is None:
        breaking = break_function(inner.place, inner.first(), inner.place.stack, left)
        stack = inner.stack
    else:
        breaking, stack = _pending_call(inner, inner.called)
    function, given = name(breaking), ["_Stopped", *stack, *inner.rest]
    for depth, outer in enumerate(outers):
        called = f"_call{depth}"
        made = f"{name(Thunk)}({function}, ({', '.join(given)},))"
        rebuilder.lines.append(f"{called} = {made}")
        pending, stack = _pending_call(outer, called)
        function, given = name(pending), ["_Stopped", *stack, *outer.rest]
    count, places = len(outers), [len(outer.stack) for outer in outers]
    lines = [f"_w{count} = {function}({', '.join(given)})"]
    lines.append(f"if _w{count}.__class__ is not _Stopped: return _w{count}")
    others: list[str] = []
    for at in range(count, 0, -1):  # from the outermost frame inwards
        place = places[at - 1]
        lines.append(f"_w{at} = _w{at}.values")
        lines.append(f"_w{at - 1} = _w{at}[{place}]")
        arguments = ", ".join([f"*_w{at}", *others])
        target = f"_resume[{len(left.results) + at - 1}]"
        gone = f"return _go({target}, ({arguments},))"
        lines.append(f"if _w{at - 1}.__class__ is not _Stopped: {gone}")
        others.insert(0, f"*{name(without)}(_w{at}, {place})")
    arguments = ", ".join(["*_w0.values", *others])
    lines.append(f"return _go(_resume[_w0.exit], ({arguments},))")
    rebuilder.lines += lines


def without(values: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    """Values without the one at a place: the result of the pending call."""
    return values[:place] + values[place + 1 :]


def _pending_call(live: _Live, called: str) -> tuple[FunctionType, list[str]]:
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
