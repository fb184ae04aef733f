"""Where the points of a scatter go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from plait_ir_lowering.ir.index import IndexExpr, Var
from plait_ir_lowering.ir.values import Value
from plait_utils import dataclass

Place: TypeAlias = Sequence[IndexExpr | Value]


@dataclass(frozen=True, slots=True)
class Writes:
    """Loops over what is written, and where each of their points goes."""

    ranges: tuple[Var, ...]
    place: Place
    counted: Value | None = None
    """Which points add something, a bool; None for all. Others have a place within bounds, too."""

    @property
    def points(self) -> list[IndexExpr]:
        return [var.expr for var in self.ranges]
