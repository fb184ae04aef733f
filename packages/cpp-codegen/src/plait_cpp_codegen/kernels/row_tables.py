"""Values that rows of a loop share, computed once and kept in a table.

Where an image is enlarged, the places and weights along its last axis are the same in all rows; of
an image that is sampled, those of all channels are. Where other loops run inside of those that such
values depend on, a table for a block of columns serves all points of these loops.

    for n, c, h: for w: x[n, c, h, f(w)]        f, computed once for each w
    for n, c: for w: x[n, c, f(grid[n, w])]     f, computed once for each n and w
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plait_cpp_codegen.kernels.plan import LoopPlan
from plait_ir_lowering import (
    Atom,
    CheckedIndex,
    Const,
    IndexExpr,
    IndexValue,
    Load,
    Local,
    Masked,
    Op,
    Value,
    Var,
    atoms,
    post_order,
    stride_of,
)
from plait_scheduler import EXPENSIVE, Access, estimate
from plait_utils import dataclass

_WORTH = 3.0
"""What computing a value costs at least, in simple operations, to be looked up instead."""
_FEWEST_ROWS = 4
"""So many rows are worth a table."""
_MOST_TABLES = 16
_BYTES = 16384
"""Of all tables of a kernel, which stay in the nearest cache."""


@dataclass(frozen=True, slots=True)
class RowTables:
    """What a kernel looks up, and the loops that its tables serve."""

    values: tuple[Value, ...]
    around: tuple[Var, ...]
    """The outer variables that tables depend on, besides the vector's."""
    within: tuple[Var, ...]
    """The other ones: their loops run with one table."""
    width: int
    """Columns of a table."""


def row_tables(plan: LoopPlan) -> RowTables | None:
    """The tables of a kernel of outer points; None where it needs none."""
    kernel, vector = plan.kernel, plan.vector
    if vector is None or kernel.inner or plan.along_rows or plan.lanes == 1:
        return None
    rows = kernel.outer[:-1]
    facts = _Facts(vector, {p.name for p in kernel.params if p.access is Access.READ_WRITE})
    best: tuple[float, tuple[Value, ...]] = (0.0, ())
    for var in reversed(rows):
        if estimate(var.extent) < _FEWEST_ROWS:
            continue
        found = {v: None for s in kernel.statements for v in facts.shared(s.value, var)}
        gain = sum(facts.cost(value) for value in found)
        if gain > best[0]:
            best = gain, tuple(found)
    values = best[1]
    if not values or len(values) > _MOST_TABLES:
        return None
    needed = {atom for value in values for atom in facts.depends[value]}
    width = _BYTES // (8 * len(values)) // plan.lanes * plan.lanes
    return RowTables(
        values,
        tuple(var for var in rows if var in needed),
        tuple(var for var in rows if var not in needed),
        width,
    )


class _Facts:
    """What is known of the values of a kernel."""

    def __init__(self, vector: Var, written: set[str]) -> None:
        self.vector = vector
        self.written = written
        self.depends: dict[Value, frozenset[Atom]] = {}
        self._own: dict[Value, float] = {}
        self._fixed: dict[Value, bool] = {}
        """Whether nothing that it needs changes while the kernel runs, or has a name."""

    def shared(self, root: Value, var: Var) -> Iterator[Value]:
        """The largest parts of a value that are the same for all of a variable, yet differ along
        a row, and are certainly needed."""
        for value in post_order([root]):
            self._enter(value)
        stack, seen = [root], set()
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            depends = self.depends[value]
            if self._fixed[value] and self.vector in depends and var not in depends:
                if self.cost(value) >= _WORTH:
                    yield value
            elif isinstance(value, Masked):
                stack += (value.mask, value.other)
            else:
                stack += value.operands

    def cost(self, root: Value) -> float:
        """Of computing a value, in simple operations."""
        return sum(self._own[value] for value in post_order([root]))

    def _enter(self, value: Value) -> None:
        if value in self.depends:
            return
        found: frozenset[Atom] = frozenset()
        for expr in _index_expressions(value):
            found |= atoms(expr)
        for operand in value.operands:
            found |= self.depends[operand]
        self.depends[value] = found
        fixed = not isinstance(value, Local | Masked)
        fixed = fixed and not (isinstance(value, Load) and value.buffer in self.written)
        self._fixed[value] = fixed and all(self._fixed[operand] for operand in value.operands)
        self._own[value] = self._own_cost(value) if self.vector in found else 0.0

    def _own_cost(self, value: Value) -> float:
        match value:
            case Const() | IndexValue():
                return 0.0
            case Load():
                if value.operands:
                    return 6.0
                strides = [stride_of(expr, self.vector) for expr in _index_expressions(value)]
                near = all(
                    s is not None and s.is_constant and s.constant in (0, 1) for s in strides
                )
                return 0.5 if near else 3.0
            case CheckedIndex():
                return 3.0
            case Op(name, _, _):
                return 10.0 if name in EXPENSIVE else 1.0
        return 1.0


def _index_expressions(value: Value) -> Sequence[IndexExpr]:
    if isinstance(value, IndexValue):
        return [value.expr]
    if isinstance(value, Load):
        return [at for at in value.index if isinstance(at, IndexExpr)]
    return []
