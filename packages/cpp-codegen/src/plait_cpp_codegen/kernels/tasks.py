"""How a kernel's outer points are divided into tasks, which threads share."""

from __future__ import annotations

from collections.abc import Sequence

from plait_cpp_codegen.kernels.costs import statement_cycles
from plait_cpp_codegen.kernels.index import c_index, kernel_index
from plait_cpp_codegen.kernels.plan import LoopPlan, extent_of
from plait_cpp_codegen.kernels.row_tables import row_tables
from plait_ir_lowering import IndexExpr, Var, as_index
from plait_utils import dataclass

_FEW_ROWS = 64
_MOST_BLOCKS, _NARROWEST_BLOCK = 32, 64
"""How many blocks of columns a scatter has at most, and how many columns a block has at least."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks of a kernel. In column mode each is a block of columns of one row."""

    count: IndexExpr
    width: IndexExpr
    """Columns of a block; 0 in row mode."""
    blocks: IndexExpr
    """Blocks of a row."""


def tasks_of(plan: LoopPlan) -> Tasks:
    """How the outer points are divided."""
    outer, zero, one = plan.kernel.outer, as_index(0), as_index(1)
    if plan.along_rows or not outer:
        return Tasks(extent_of(outer), zero, one)
    columns, rows = outer[-1].extent, extent_of(outer[:-1])
    width = columns
    kept = row_tables(plan)
    if kept is not None:
        width = _at_most(columns, kept.width)
    elif plan.kernel.inner:
        width = _at_most(columns, plan.choices.column_vectors * plan.lanes)
    elif not rows.is_constant or rows.constant < _FEW_ROWS:
        width = _at_most(columns, plan.choices.columns_per_task)
    blocks = one
    if width is not columns and width.terms:
        blocks = (columns + (width - 1)) // width
    return Tasks(rows * blocks, width, blocks)


def scatter_tasks(plan: LoopPlan) -> Tasks:
    """How the outer points of what writes at computed places are divided.

    Blocks of columns are as wide as some lines of the cache: the rows next to each other that
    tasks write share them.
    """
    outer, one = plan.kernel.outer, as_index(1)
    if plan.along_rows or not outer:
        return Tasks(extent_of(outer), as_index(0), one)
    columns, rows = outer[-1].extent, extent_of(outer[:-1])
    if not columns.is_constant or not rows.is_constant or rows.constant >= _FEW_ROWS:
        return Tasks(rows, columns, one)
    lines = -(-columns.constant // (_MOST_BLOCKS * _NARROWEST_BLOCK))
    width = max(lines, 1) * _NARROWEST_BLOCK
    blocks = max(-(-columns.constant // width), 1)
    return Tasks(rows * blocks, as_index(width), as_index(blocks))


def _at_most(columns: IndexExpr, limit: int) -> IndexExpr:
    return columns if columns.is_constant and columns.constant <= limit else as_index(limit)


def grain_of(plan: LoopPlan, tasks: Tasks) -> str:
    """C++ of how many tasks are worth a thread, over the kernel's sizes."""
    inner = extent_of(plan.kernel.inner)
    work = sum(statement_cycles(each, plan.lanes) for each in plan.kernel.statements)
    points = (tasks.width if tasks.width.terms else 1) * (inner if inner.terms else 1)
    points = as_index(points)
    if points.is_constant:
        cycles = max(points.constant * work / plan.lanes, 1)
        return str(max(int(plan.choices.cycles_per_task / cycles), 1))
    most = int(plan.choices.cycles_per_task * plan.lanes / max(work, 1))
    return f"(1 + {most} / (1 + {c_index(points)}))"


def decoded(variables: Sequence[Var], from_: str) -> list[str]:
    """C++ that finds the variables of a point from its number."""
    lines = []
    for position, var in enumerate(variables):
        below = extent_of(variables[position + 1 :])  # where 0, there is no point
        text = from_ if _is_one(below) else f"{from_} / {divisor(below)}"
        if position:
            text = f"({text}) % {divisor(var.extent)}"
        lines.append(f"const int64_t {var.name} = {text}; (void){var.name};")
    return lines


def _is_one(expr: IndexExpr) -> bool:
    return expr.is_constant and expr.constant <= 1


def divisor(expr: IndexExpr) -> str:
    """What is divided by: numbers stay constants, of which compilers make multiplications."""
    return str(max(expr.constant, 1)) if expr.is_constant else f"({kernel_index(expr)})"
