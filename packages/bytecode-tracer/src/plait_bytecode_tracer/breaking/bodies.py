"""The instructions of a function's code, changed so that it is entered in its midst."""

from __future__ import annotations

import inspect
import opcode
import sys
import types
from collections.abc import Sequence
from typing import Any, cast

from bytecode import Bytecode, Instr, Label
from bytecode.instr import CellVar, FreeVar

from plait_bytecode_tracer.breaking.origins import Origin, remember
from plait_bytecode_tracer.breaking.places import CELL_PREFIX, HANDLED, MISSING, STACK_PREFIX, Place
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import instructions_of

_SKIPPED = ("CACHE", "EXTENDED_ARG")

_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}


class Body:
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
        remember(made, Origin(self.place.code, offsets, calls))

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
    """Put `STORE_FAST` where `Body.enter` has put cells into their places."""
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


def calling(function: Instr, arguments: Sequence[Any]) -> list[Any]:
    """Instructions that call a function."""
    null = Instr("PUSH_NULL")
    pair = [null, function] if sys.version_info < (3, 13) else [function, null]
    precall = [Instr("PRECALL", len(arguments))] if sys.version_info < (3, 12) else []
    return [*pair, *flat(arguments), *precall, Instr("CALL", len(arguments))]


def flat(parts: Sequence[Any]) -> list[Any]:
    """Instructions, some of which come in lists."""
    return [item for part in parts for item in (part if isinstance(part, list) else [part])]


def constant_of(value: object) -> Instr:
    """Load a constant."""
    return Instr("LOAD_CONST", value)


def loads(names: Sequence[str]) -> list[Any]:
    """Take variables, which hold nothing then."""
    return [[Instr("LOAD_FAST", name), Instr("DELETE_FAST", name)] for name in names]
