"""Where a frame stands at a graph break, and how functions that go on there take it."""

from __future__ import annotations

import types
from typing import Any

from plait_utils import dataclass

STACK_PREFIX = "__stack"
"""Parameters of continuations that carry the stack; they are dead once it is rebuilt."""
CELL_PREFIX = "__cell"
"""Parameters that carry cells."""

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
