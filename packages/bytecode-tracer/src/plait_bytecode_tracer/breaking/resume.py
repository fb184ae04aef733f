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

import inspect
import opcode
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from bytecode import Bytecode, Instr, Label
from bytecode.instr import CellVar, FreeVar

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.effects import LOOP_END, Exits
from plait_bytecode_tracer.frames.frame import instructions_of, line_text
from plait_bytecode_tracer.residual.steps import Thunk

STACK_PREFIX = "__stack"
"""Parameters of continuations that carry the stack; they are dead once it is rebuilt."""
CELL_PREFIX = "__cell"
"""Parameters that carry cells."""
STOPPED = "__stopped"
RESULT_PREFIX = "__result"
_DROPPED = "__dropped"
_RAISED = "__raised"

VALUE, MISSING, HANDLED = "value", "missing", "handled"
"""What lies on the stack: a value, a NULL, or below a handler the mark that it is running."""


class Stopped:
    """Where a break function has stopped: by which exit, and what the rest takes."""

    __slots__ = ("exit", "values")

    def __init__(self, values: tuple[Any, ...], exit_: int) -> None:
        self.values = values
        self.exit = exit_


@dataclass(frozen=True, slots=True)
class Place:
    """Where a frame stands, as far as the code of made functions depends on it."""

    code: types.CodeType
    namespace: dict[str, Any]
    closure: tuple[types.CellType, ...] | None
    """The cells of a real function; None if they are passed with those of the frame."""
    offset: int
    """Of the instruction that breaks, or that waits for a call."""
    stack: tuple[str, ...]
    """What lies on the stack, from the bottom, without the operands of a pending call."""
    locals: tuple[str, ...]
    cells: tuple[str, ...]
    """The variables whose cells are passed."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for places that are the same; the objects of the place must be alive."""
        cells = None if self.closure is None else tuple(map(id, self.closure))
        spaces = id(self.code), id(self.namespace), cells
        return (*spaces, self.offset, self.stack, self.locals, self.cells)


# Where instructions of made functions come from.


@dataclass(frozen=True, slots=True)
class Origin:
    """The code that a made function's code was made of."""

    code: types.CodeType
    offsets: dict[int, int]
    """For each instruction the one that it was; -1 where it is a part of one."""
    calls: frozenset[int]
    """The calls that `resume_call` has put beside those that they stand for."""


_ORIGINS: dict[int, tuple[weakref.ref[types.CodeType], Origin]] = {}


def origin_of(code: types.CodeType) -> Origin | None:
    """Of what code a function's code was made, if it was."""
    found = _ORIGINS.get(id(code))
    return found[1] if found is not None and found[0]() is code else None


def _remember(code: types.CodeType, origin: Origin) -> None:
    key = id(code)
    _ORIGINS[key] = (weakref.ref(code, lambda _: _ORIGINS.pop(key, None)), origin)


_SKIPPED = ("CACHE", "EXTENDED_ARG")

_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}


class _Body:
    """The instructions of a place's code, to be changed, each with where it comes from."""

    def __init__(self, place: Place) -> None:
        self.place = place
        code = place.code
        self.items: Any = Bytecode.from_code(code, conserve_exception_block_stackdepth=True)
        offsets = [i.offset for i in instructions_of(code)[0] if i.opname not in _SKIPPED]
        own = [item for item in self.items if isinstance(item, Instr)]
        self.tags = {id(i): offset for i, offset in zip(own, offsets, strict=True)}
        self.calls: set[int] = set()
        self.kept = own
        """So that no other instruction gets the id of one that was replaced."""

    def position(self, offset: int) -> int:
        """Where the instruction at an offset of the original stands."""
        instructions, by_offset = instructions_of(self.place.code)
        index = by_offset[offset]
        while instructions[index].opname in _SKIPPED:
            index += 1
        wanted = instructions[index].offset
        for position, item in enumerate(self.items):
            if isinstance(item, Instr) and self.tags.get(id(item)) == wanted:
                return position
        raise TraceBreakError("GB0001", "the place to resume at was not found")

    def tag(self, item: Instr, offset: int) -> Instr:
        """Say where an instruction comes from."""
        self.tags[id(item)] = offset
        self.kept.append(item)
        return item

    def copy(self, item: Any) -> Any:
        """Another instruction that does the same, and comes from the same one."""
        return self.tag(item.copy(), self.tags.get(id(item), -1))

    def load(self, name: str) -> Instr:
        """Load what a variable holds."""
        if name in self.items.cellvars:
            return Instr("LOAD_DEREF", CellVar(name))
        return Instr("LOAD_FAST", name)

    def load_cell(self, name: str) -> Instr:
        """Load the cell of a variable."""
        free = name in self.items.freevars
        variable = FreeVar(name) if free else CellVar(name)
        return Instr("LOAD_CLOSURE" if sys.version_info < (3, 13) else "LOAD_FAST", variable)

    def enter(
        self, target: Label, stack: Sequence[str], *, handled: bool = False
    ) -> tuple[list[str], list[str]]:
        """Begin at a label with a given stack; the parameters that carry it, and the cells.

        These are no variables of the function any more, but with `handled` the exceptions
        that are being handled.
        """
        prologue: list[Any] = []
        cells = [f"{CELL_PREFIX}{n}_{name}" for n, name in enumerate(self.place.cells)]
        for parameter, name in zip(cells, self.place.cells, strict=True):
            # STORE_FAST puts a cell in its place; the assembler does not know it of cells.
            variable = FreeVar(name) if name in self.items.freevars else CellVar(name)
            prologue += [Instr("LOAD_FAST", parameter), Instr("MAKE_CELL", variable)]
            prologue.append(Instr("DELETE_FAST", parameter))
        names = [f"{STACK_PREFIX}{n}" for n in range(len(stack))]
        for name, kind in zip(names, stack, strict=True):
            prologue.append(Instr("PUSH_NULL") if kind == MISSING else Instr("LOAD_FAST", name))
            if kind != MISSING and not (handled and kind == HANDLED):
                prologue.append(Instr("DELETE_FAST", name))
            if kind == HANDLED:
                prologue += [Instr("PUSH_EXC_INFO"), Instr("POP_TOP")]
        prologue.append(Instr("JUMP_FORWARD", target))
        start = 1 + next(
            n
            for n, item in enumerate(self.items)
            if isinstance(item, Instr) and item.name == "RESUME"
        )
        self.items[start:start] = prologue
        return [name for name, kind in zip(names, stack, strict=True) if kind != MISSING], cells

    def function(self, parameters: list[str], suffix: str, pushed: int) -> types.FunctionType:
        """The function, which takes parameters by position."""
        code = self.place.code
        body = self.items
        body.argnames = parameters
        body.argcount = len(parameters)
        body.posonlyargcount = body.kwonlyargcount = 0
        body.flags &= ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
        self._split_pairs()
        self._name_arguments_of_super()
        size = code.co_stacksize + pushed + len(("exception", "__class__", "self"))
        made_code = body.to_code(stacksize=size, compute_exception_stack_depths=False)
        made_code = _store_cells(made_code, len(self.place.cells))
        self._remember(made_code)
        closure = self.place.closure
        if closure is None:  # those that are passed take their places
            closure = tuple(types.CellType() for _ in code.co_freevars)
        made = types.FunctionType(
            made_code, self.place.namespace, code.co_name, None, closure or None
        )
        made.__module__ = self.place.namespace.get("__name__", "")
        made.__name__ = f"{code.co_name}_{suffix}"
        made.__qualname__ = f"{code.co_qualname} ({suffix})"
        return made

    def _remember(self, made: types.CodeType) -> None:
        new = [i.offset for i in instructions_of(made)[0] if i.opname not in _SKIPPED]
        own = [item for item in self.items if isinstance(item, Instr)]
        offsets = {n: self.tags.get(id(i), -1) for n, i in zip(new, own, strict=True)}
        calls = frozenset(n for n, i in zip(new, own, strict=True) if id(i) in self.calls)
        _remember(made, Origin(self.place.code, offsets, calls))

    def _split_pairs(self) -> None:
        """Load and store locals one by one: pairs of 3.13 reach 16 locals, and here are more."""
        for position in reversed(range(len(self.items))):
            item = self.items[position]
            if isinstance(item, Instr) and item.name in _PAIRS:
                arguments: Any = item.arg
                parts = [
                    Instr(name, argument, location=item.location)
                    for name, argument in zip(_PAIRS[item.name], arguments, strict=True)
                ]
                self.tag(parts[0], self.tags.get(id(item), -1))
                self.items[position : position + 1] = parts

    def _name_arguments_of_super(self) -> None:
        """Make `super()` name what it takes: of itself it takes the first parameter."""
        code = self.place.code
        if "__class__" not in code.co_freevars or not code.co_argcount:
            return
        if self.place.namespace.get("super", super) is not super:
            return  # one of the program's own, which is called without arguments
        first = code.co_varnames[0]
        check = "LOAD_FAST" if sys.version_info < (3, 12) else "LOAD_FAST_CHECK"
        is_cell = first in code.co_cellvars
        receiver = Instr("LOAD_DEREF", CellVar(first)) if is_cell else Instr(check, first)
        cls = FreeVar("__class__")
        found = [(n, item) for n, item in enumerate(self.items) if isinstance(item, Instr)]
        for n, item in found:
            if item.name == "LOAD_SUPER_ATTR":
                is_method, _, attribute = cast("tuple[bool, bool, str]", item.arg)
                named = Instr(item.name, (is_method, True, attribute), location=item.location)
                self.items[n] = self.tag(named, self.tags.get(id(item), -1))
        for (_, loaded), *following in reversed([*zip(found, found[1:], found[2:], strict=False)]):
            if (loaded.name, loaded.arg) != ("LOAD_GLOBAL", (True, "super")):
                continue
            at, called = following[0]
            if called.name in ("PRECALL", "CALL") and called.arg == 0:
                for n, item in following[: 2 if called.name == "PRECALL" else 1]:
                    renamed = Instr(item.name, 2, location=item.location)
                    self.items[n] = self.tag(renamed, self.tags.get(id(item), -1))
                self.items[at:at] = [Instr("LOAD_DEREF", cls), receiver.copy()]


def _store_cells(code: types.CodeType, count: int) -> types.CodeType:
    """Put `STORE_FAST` where `_Body.enter` has put cells into their places."""
    if not count:
        return code
    made = bytearray(code.co_code)
    make, store = opcode.opmap["MAKE_CELL"], opcode.opmap["STORE_FAST"]
    entered = False
    for instruction in instructions_of(code)[0]:
        if instruction.opname == "RESUME":
            entered = True
        elif entered and instruction.opcode == make:
            made[instruction.offset] = store
            count -= 1
            if not count:
                break
    return code.replace(co_code=bytes(made))


def _calls(function: Instr, arguments: Sequence[Any]) -> list[Any]:
    """Instructions that call a function."""
    null = Instr("PUSH_NULL")
    pair = [null, function] if sys.version_info < (3, 13) else [function, null]
    precall = [Instr("PRECALL", len(arguments))] if sys.version_info < (3, 12) else []
    return [*pair, *_flat(arguments), *precall, Instr("CALL", len(arguments))]


def _flat(parts: Sequence[Any]) -> list[Any]:
    """Instructions, some of which come in lists."""
    return [item for part in parts for item in (part if isinstance(part, list) else [part])]


def raising_function(place: Place) -> types.FunctionType:
    """A function that raises an exception at the place's instruction, as if that had raised it.

    It takes the stack, the exception, the locals and the cells.
    """
    body = _Body(place)
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


# What goes on.


def resume_function(place: Place, offset: int, stack: Sequence[str]) -> types.FunctionType:
    """A function that continues at an offset with a stack.

    It takes the stack from the bottom (NULLs are not passed), the locals and the cells.
    """
    body = _Body(place)
    target = Label()
    body.items.insert(body.position(offset), target)
    passed, cells = body.enter(target, stack)
    return body.function([*passed, *place.locals, *cells], "resumed", len(stack))


def resume_generator(place: Place) -> types.FunctionType:
    """A generator function that goes on at the place's `yield`, with what it yields at first.

    It takes the stack, the locals and the cells.
    """
    body = _Body(place)
    target = Label()
    body.items.insert(body.position(place.offset), target)
    passed, cells = body.enter(target, place.stack)
    made = body.function([*passed, *place.locals, *cells], "resumed", len(place.stack))
    made.__name__, made.__qualname__ = place.code.co_name, place.code.co_qualname
    return made


def resume_call(place: Place) -> types.FunctionType:
    """A function that makes a frame's pending call anew: of something without arguments.

    It takes the stack below the call, what is called, the locals and the cells. Handlers
    around the call are around it here too.
    """
    body = _Body(place)
    last = body.position(place.offset)
    location = body.items[last].location
    after, target = Label(), Label()
    count = len(place.stack)
    thunk = f"{STACK_PREFIX}{count}"
    called = _calls(Instr("LOAD_FAST", thunk), [])
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
    body = _Body(place)
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


def _stop(body: _Body, kept: Sequence[str], results: int, number: int) -> list[Any]:
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
    called = _calls(Instr("LOAD_FAST", STOPPED), [packed, Instr("LOAD_CONST", number)])
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
    call: list[Any] = [_const(functions[0]), *_loads(names)]
    for function, outer in zip(functions[1:], outers, strict=True):
        below = sum(kind != MISSING for kind in outer.stack)
        fresh = _names_beside(names, function, below)
        packed = [*_flat(call[1:]), Instr("BUILD_LIST", len(call) - 1)]
        inner = _calls(_const(Thunk), [call[0], packed])
        call = [_const(function), *_loads(fresh[:below]), inner, *_loads(fresh[below:])]
        names += fresh
    return _linked(_calls(call[0], call[1:]), names, functions[0])


def under(enter: Callable[..., None], function: types.FunctionType) -> types.FunctionType:
    """A function that first enters modes, which it takes before what another takes; then that one.

    `enter` is called with the modes.
    """
    count = function.__code__.co_argcount
    names = list(function.__code__.co_varnames[:count])
    modes = f"{STACK_PREFIX}modes"
    entered = [*_calls(_const(enter), _loads([modes])), Instr("POP_TOP")]
    return _linked([*entered, *_calls(_const(function), _loads(names))], [modes, *names], function)


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


def shown_parameter(name: str) -> str:
    """A parameter of a continuation for people."""
    kind, _, rest = name.partition("_of_")
    place = kind.removeprefix(STACK_PREFIX)
    if place != kind and place.strip("_").isdigit():
        return f"value {place.strip('_')} on the stack" + (f" of {rest}" if rest else "")
    if name.startswith(CELL_PREFIX):
        return name.removeprefix(CELL_PREFIX).lstrip("0123456789").removeprefix("_") or name
    return name


def is_chain(code: types.CodeType) -> bool:
    """Whether a code object is that of a function that `chain` made."""
    return code.co_filename == "<plait continuation>"


def lines_at(function: types.FunctionType) -> tuple[str, ...]:
    """Where a call begins, innermost line first: that of a continuation in the midst of them."""
    code = function.__code__
    if is_chain(code):
        parts = [each for each in code.co_consts if isinstance(each, types.FunctionType)]
        return tuple(line for part in reversed(parts) for line in lines_at(part))
    if origin_of(code) is None:
        return (f"{code.co_filename}:{code.co_firstlineno}",)
    instructions, by_offset = instructions_of(code)
    entered = next(i for i in instructions if i.opname == "JUMP_FORWARD")
    positions = instructions[by_offset[entered.argval]].positions
    number = (positions and positions.lineno) or code.co_firstlineno
    return (line_text(code.co_filename, number, code.co_name),)


def _const(value: object) -> Instr:
    return Instr("LOAD_CONST", value)


def _loads(names: Sequence[str]) -> list[Any]:
    """Take variables, which hold nothing then."""
    return [[Instr("LOAD_FAST", name), Instr("DELETE_FAST", name)] for name in names]
