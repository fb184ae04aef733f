"""Live frames of the trace as Python text: where they stand, and what they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dis import Instruction
from typing import TYPE_CHECKING, Any

import torch

from plait_bytecode_tracer.breaking.origins import origin_of
from plait_bytecode_tracer.breaking.places import (
    CELL_PREFIX,
    HANDLED,
    MISSING,
    STACK_PREFIX,
    VALUE,
    Place,
)
from plait_bytecode_tracer.breaking.reads import reads_from
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.effects import LOOP_END
from plait_bytecode_tracer.frames.frame import NULL, Frame, Handled, instructions_of
from plait_bytecode_tracer.residual.steps import Thunk
from plait_bytecode_tracer.values.sources import Access
from plait_bytecode_tracer.values.variables import CellVariable, TensorVariable, Variable
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_bytecode_tracer.residual.rebuild import Rebuilder

_BEFORE_CALLS = ("PRECALL", "KW_NAMES", "EXTENDED_ARG")


@dataclass(slots=True)
class Live:
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


def live_frame(frame: Frame, rebuilder: Rebuilder, *, is_innermost: bool) -> Live:
    """A frame that waits at its instruction. Raises TraceBreakError if it cannot be made real.

    Tensors that the trace has made, in variables that nothing reads any more, are left out: they
    need not be computed for them.
    """
    read = reads_from(frame.code, frame.instruction.offset)

    def wanted(name: str, value: Variable) -> bool:
        return read is None or name in read or not _is_made_tensor(value)

    values = frame.stack
    return standing(
        frame, rebuilder, frame.instruction, values, is_innermost=is_innermost, wanted=wanted
    )


def _is_made_tensor(value: Variable) -> bool:
    """Whether a value is a plain tensor that nobody outside of the trace has seen."""
    if not isinstance(value, TensorVariable) or value.cls is not torch.Tensor:
        return False
    return value.source is None and value.original is None and value.attributes is None


def standing(
    frame: Frame,
    rebuilder: Rebuilder,
    instruction: Instruction,
    values: Sequence[Variable],
    *,
    is_innermost: bool,
    wanted: Callable[[str, Variable], bool] | None = None,
) -> Live:
    """A frame that stands at an instruction with a stack.

    `wanted` says of local variables and cells whether it must have them; None for all.
    """
    code, offset = frame.code, instruction.offset
    origin = origin_of(code)
    if origin is not None:
        code, offset = origin.code, origin.offsets[offset]
        if offset < 0:
            raise TraceBreakError("GB0001", "a break in the midst of an instruction")
    instructions, by_offset = instructions_of(code)
    active = list(frame.handled)
    kinds: list[str] = []
    stack: list[str] = []
    for value in values:
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
        if wanted is None or wanted(name, value)
    }
    cells = {name: frame.cells[name] for name in code.co_cellvars if name in frame.cells}
    closure = _closure(frame, code.co_freevars)
    if closure is None:
        cells |= {name: _free_cell(frame, name) for name in code.co_freevars}
    if wanted is not None:
        cells = {name: cell for name, cell in cells.items() if wanted(name, cell)}
    called = None
    if is_innermost and origin is not None and instruction.offset in origin.calls:
        del kinds[-2:]
        called = rebuilder.assign(f"{rebuilder.state.constants.name(Thunk)}({stack.pop()}, ())")
    names = tuple(kinds), tuple(held), tuple(cells)
    place = Place(code, frame.function.globals, closure, offset, *names)
    rest = [*held.values(), *(rebuilder.value(cell) for cell in cells.values())]
    return Live(place, instructions[by_offset[offset]], stack, rest, called)


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
