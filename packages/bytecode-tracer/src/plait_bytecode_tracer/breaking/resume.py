"""Functions that go on in the middle of another: its locals and stack as arguments.

At a graph break two kinds of functions are made of the code of each live frame. One runs
the breaking instruction where it stands, so that its line, its exception handlers and its
globals are the user's, and stops; the other, which is compiled, takes what that gives and
goes on after the instruction. If the instruction raises into a handler of the function, the
first one goes on there as plain Python.

All are made of the user's own code, also where a continuation breaks once more: an
instruction of a made function is traced back to the one that it was (`origin_of`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

from bytecode import Bytecode, Instr, Label

from plait_bytecode_tracer.breaking.bodies import Body, calling, constant_of, flat, loads
from plait_bytecode_tracer.breaking.places import (
    HANDLED,
    MISSING,
    STACK_PREFIX,
    VALUE,
    Place,
)
from plait_bytecode_tracer.frames.effects import LOOP_END, Exits
from plait_bytecode_tracer.residual.steps import Thunk

STOPPED = "__stopped"
RESULT_PREFIX = "__result"
_DROPPED = "__dropped"
_RAISED = "__raised"


def resume_function(place: Place, offset: int, stack: Sequence[str]) -> types.FunctionType:
    """A function that continues at an offset with a stack.

    It takes the stack from the bottom (NULLs are not passed), the locals and the cells.
    """
    body = Body(place)
    target = Label()
    body.items.insert(body.position(offset), target)
    passed, cells = body.enter(target, stack)
    return body.function([*passed, *place.locals, *cells], "resumed", len(stack))


def resume_generator(place: Place) -> types.FunctionType:
    """A generator function that goes on at the place's `yield`, with what it yields at first.

    It takes the stack, the locals and the cells.
    """
    body = Body(place)
    target = Label()
    body.items.insert(body.position(place.offset), target)
    passed, cells = body.enter(target, place.stack)
    made = body.function([*passed, *place.locals, *cells], "resumed", len(place.stack))
    made.__name__, made.__qualname__ = place.code.co_name, place.code.co_qualname
    return made


def raising_function(place: Place) -> types.FunctionType:
    """A function that raises an exception at the place's instruction, as if that had raised it.

    It takes the stack, the exception, the locals and the cells.
    """
    body = Body(place)
    position = body.position(place.offset)
    location = body.items[position].location
    original, target = Label(), Label()
    raised: list[Any] = [
        Instr(name, argument, location=location)
        for name, argument in (("LOAD_FAST", _RAISED), ("DELETE_FAST", _RAISED))
    ]
    raised.append(Instr("RAISE_VARARGS", 1, location=location))
    for item in raised:
        body.tag(item, place.offset)
    body.items[position:position] = [Instr("JUMP_FORWARD", original), target, *raised, original]
    passed, cells = body.enter(target, place.stack)
    parameters = [*passed, _RAISED, *place.locals, *cells]
    return body.function(parameters, "resumed", len(place.stack) + 1)


def resume_call(place: Place) -> types.FunctionType:
    """A function that makes a frame's pending call anew: of something without arguments.

    It takes the stack below the call, what is called, the locals and the cells. Handlers
    around the call are around it here too.
    """
    body = Body(place)
    last = body.position(place.offset)
    location = body.items[last].location
    after, target = Label(), Label()
    count = len(place.stack)
    thunk = f"{STACK_PREFIX}{count}"
    called = calling(Instr("LOAD_FAST", thunk), [])
    loaded = next(n for n, item in enumerate(called) if item.name == "LOAD_FAST")
    called.insert(loaded + 1, Instr("DELETE_FAST", thunk))
    for item in called:
        item.location = location
        body.tag(item, place.offset)
        body.calls.add(id(item))
    body.items[last + 1 : last + 1] = [Instr("JUMP_FORWARD", after), target, *called, after]
    passed, cells = body.enter(target, place.stack)
    parameters = [*passed, thunk, *place.locals, *cells]
    return body.function(parameters, "resumed", count + 2)


def break_function(
    place: Place, first: int, stack: Sequence[str], exits: Exits
) -> types.FunctionType:
    """A function that runs the instructions from `first` to the place's, and stops there.

    It takes the class of its result, the stack, the locals and the cells. Its result is an
    instance of that class, made of the stack as the instruction leaves it, the locals, the
    cells and the number of the exit; or what the user's function returns, where an exception
    handler of the user's led there.

    The instructions run as copies beside those of the user's code. What goes on in a handler
    may come by there again, in a loop, with other variables than the rest of the function
    takes: it does not stop.
    """
    body = Body(place)
    kept = stack[: len(stack) - exits.operands]
    start, last = body.position(first), body.position(place.offset)
    copies = [body.copy(item) for item in body.items[start : last + 1]]
    broken = copies[-1]
    ends = [Label() for _ in exits.results]
    blocks: list[Any] = []
    for number, (end, results) in enumerate(zip(ends, exits.results, strict=True)):
        blocks.append(end)
        if number and broken.name == "FOR_ITER":  # what ends it is skipped
            blocks += [Instr(name) for name in ("END_FOR", "POP_TOP")[:LOOP_END]]
        blocks += _stop(body, kept, results, number)
    if len(ends) > 1:
        forward = broken.name.replace("BACKWARD", "FORWARD")
        location = broken.location
        copies[-1] = body.tag(Instr(forward, ends[1], location=location), place.offset)
    if ends:
        copies.append(Instr("JUMP_FORWARD", ends[0]))
    target, original = Label(), Label()
    body.items[start:start] = [Instr("JUMP_FORWARD", original), target, *copies, original]
    passed, cells = body.enter(target, stack, handled=True)
    body.items += blocks
    pushed = 4 + len(stack) + sum(exits.results) + len(place.locals) + len(cells)
    return body.function([STOPPED, *passed, *place.locals, *cells], "broken", pushed)


def _stop(body: Body, kept: Sequence[str], results: int, number: int) -> list[Any]:
    """Leave a break function by an exit, with nothing being handled any more."""
    names = [f"{RESULT_PREFIX}{n}" for n in range(results)]
    made: list[Any] = [Instr("STORE_FAST", name) for name in reversed(names)]
    held = [f"{STACK_PREFIX}{n}" for n in range(len(kept))]
    for name, kind in reversed([*zip(held, kept, strict=True)]):
        store = Instr("STORE_FAST", name if kind == VALUE else _DROPPED)
        made.append(Instr("POP_EXCEPT") if kind == HANDLED else store)
    below = [name for name, kind in zip(held, kept, strict=True) if kind != MISSING]
    values: list[Any] = [Instr("LOAD_FAST", name) for name in [*below, *names]]
    values += [body.load(name) for name in body.place.locals]
    values += [body.load_cell(name) for name in body.place.cells]
    packed = [*values, Instr("BUILD_TUPLE", len(values))]
    called = calling(Instr("LOAD_FAST", STOPPED), [packed, Instr("LOAD_CONST", number)])
    return [*made, *called, Instr("RETURN_VALUE")]


def chain(functions: Sequence[types.FunctionType], outers: Sequence[Place]) -> types.FunctionType:
    """One function that goes on in the innermost frame, called by those around it.

    It takes what the first takes; then, for each frame around it, the stack below the
    pending call, the locals and the cells.
    """
    if len(functions) == 1:
        return functions[0]
    count = functions[0].__code__.co_argcount
    names = list(functions[0].__code__.co_varnames[:count])
    call: list[Any] = [constant_of(functions[0]), *loads(names)]
    for function, outer in zip(functions[1:], outers, strict=True):
        below = sum(kind != MISSING for kind in outer.stack)
        fresh = _names_beside(names, function, below)
        packed = [*flat(call[1:]), Instr("BUILD_LIST", len(call) - 1)]
        inner = calling(constant_of(Thunk), [call[0], packed])
        call = [constant_of(function), *loads(fresh[:below]), inner, *loads(fresh[below:])]
        names += fresh
    return _linked(calling(call[0], call[1:]), names, functions[0])


def under(enter: Callable[..., None], function: types.FunctionType) -> types.FunctionType:
    """A function that first enters modes, which it takes before what another takes; then that one.

    `enter` is called with the modes.
    """
    count = function.__code__.co_argcount
    names = list(function.__code__.co_varnames[:count])
    modes = f"{STACK_PREFIX}modes"
    entered = [*calling(constant_of(enter), loads([modes])), Instr("POP_TOP")]
    return _linked(
        [*entered, *calling(constant_of(function), loads(names))], [modes, *names], function
    )


def _linked(
    call: Sequence[Any], names: Sequence[str], first: types.FunctionType
) -> types.FunctionType:
    """A function of these parameters that returns what a call gives, named as the first it runs."""
    body: Any = Bytecode([Instr("RESUME", 0), *call, Instr("RETURN_VALUE")])
    body.argnames = list(names)
    body.argcount = len(names)
    body.name, body.filename, body.flags = "continuation", "<plait continuation>", 3
    made = types.FunctionType(body.to_code(), {"__builtins__": __builtins__}, first.__name__)
    made.__qualname__ = first.__qualname__
    made.__module__ = first.__module__
    return made


def _names_beside(names: Sequence[str], function: types.FunctionType, pending: int) -> list[str]:
    """The parameters of a frame around others, but for the pending call, by names of their own."""
    code = function.__code__
    own = list(code.co_varnames[: code.co_argcount])
    del own[pending]
    taken = set(names)
    found = []
    for name in own:
        free = name if name not in taken else f"{name}_of_{code.co_name.strip('<>')}"
        while free in taken:
            free += "_"
        taken.add(free)
        found.append(free)
    return found
