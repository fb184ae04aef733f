"""Which kernels sum products of rows and columns, and what of a product each of both gives.

A kernel like

    for i0: 8, i1: 768 inner r0: 768
      reduce t0 = sum mul(p0[i0, r0], relu(p1[i1, r0]))
      store p2[i0, i1] = add(%t0, p3[i1])

multiplies matrices: what is loaded for a row `i0` serves all columns `i1`, and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait_ir_lowering import (
    CheckedIndex,
    Const,
    DType,
    IndexExpr,
    IndexValue,
    Load,
    Local,
    Masked,
    Op,
    Value,
    Var,
    as_index,
    post_order,
    stride_of,
)
from plait_scheduler import Kernel, Reduce, Statement, sums_of, variables_of
from plait_utils import dataclass

_SUMMED = (DType.f32, DType.f64, DType.i32)
_MOST_SUMS = 4


@dataclass(frozen=True, slots=True)
class Sum:
    """One of the sums: `value` over %row0, ... and %column0, ..., what a row and a column give."""

    reduce: Reduce
    value: Value


@dataclass(frozen=True, slots=True)
class Factors:
    """A kernel that multiplies rows and columns."""

    column: Var
    """The outer variable of columns."""
    rows: tuple[Var, ...]
    """The outer variables that no column depends on."""
    batches: tuple[Var, ...]
    """The others."""
    row_parts: Mapping[Value, str]
    """What is computed for a row at a place of the inner domain, by name."""
    column_parts: Mapping[Value, str]
    sums: tuple[Sum, ...]
    finish: tuple[Statement, ...]
    """What is done with the sums at each point."""
    along: bool
    """Whether elements of a column lie side by side along the inner domain, rather than columns."""


def factors_of(kernel: Kernel) -> Factors | None:
    """The rows and columns that a kernel multiplies; None if it is no such kernel."""
    found = sums_of(kernel)
    if found is None or not kernel.outer or not kernel.inner or kernel.symbols:
        return None
    (dtype, *others) = {each.value.dtype for each in found[0]}
    if others or dtype not in _SUMMED or len(found[0]) > _MOST_SUMS:
        return None
    if not all(v.extent.is_constant and v.extent.terms for v in (*kernel.outer, *kernel.inner)):
        return None
    reduces, finish = found
    for column in reversed(kernel.outer):
        if column.extent.as_int() > 1 and (factors := _split(kernel, reduces, finish, column)):
            return factors
    return None


def _split(
    kernel: Kernel, reduces: Sequence[Reduce], finish: tuple[Statement, ...], column: Var
) -> Factors | None:
    roots = [each.value for each in reduces]
    with_column: set[object] = set()
    for value in post_order(roots):
        if isinstance(value, Load | IndexValue) and column in (seen := variables_of(value)):
            with_column |= seen
    rows = tuple(v for v in kernel.outer if v not in with_column)
    batches = tuple(v for v in kernel.outer if v in with_column and v is not column)
    parts = _Parts(column, frozenset(rows), {}, {})
    sums = []
    for reduce in reduces:
        joined = parts.over_locals(reduce.value)
        if joined is None:
            return None
        sums.append(Sum(reduce, joined))
    inner = set(kernel.inner)
    if not any(inner & variables_of(value) for value in parts.rows):
        return None
    along = _direction(kernel, [*parts.columns], column)
    if along is None or not any(inner & variables_of(value) for value in parts.columns):
        return None
    return Factors(column, rows, batches, parts.rows, parts.columns, tuple(sums), finish, along)


@dataclass(frozen=True, slots=True)
class _Parts:
    column: Var
    of_rows: frozenset[Var]
    rows: dict[Value, str]
    columns: dict[Value, str]

    def over_locals(self, value: Value) -> Value | None:
        """`value` with names for what rows and columns give; None where neither gives a part."""
        seen = variables_of(value)
        if isinstance(value, Const):
            return value
        if self.column not in seen:
            name = self.rows.setdefault(value, f"row{len(self.rows)}")
            return Local(name, value.dtype)
        if not self.of_rows & seen and not self._joins(value):
            name = self.columns.setdefault(value, f"column{len(self.columns)}")
            return Local(name, value.dtype)
        if not isinstance(value, Op):
            return None
        args = [part for arg in value.args if (part := self.over_locals(arg)) is not None]
        return Op(value.name, args, value.dtype) if len(args) == len(value.args) else None

    def _joins(self, value: Value) -> bool:
        """Whether it is a product with something of rows, where a matrix has only one of them."""
        if self.of_rows or not isinstance(value, Op):
            return False
        return any(
            isinstance(part, Op)
            and part.name == "mul"
            and any(self.column in variables_of(arg) for arg in part.args)
            and any(_is_element(arg) and self.column not in variables_of(arg) for arg in part.args)
            for part in post_order([value])
        )


def _is_element(value: Value) -> bool:
    """Whether it follows from what is loaded for each place of the inner domain, as far as that
    can be told: from a load, that is."""
    return any(isinstance(part, Load) and part.index for part in post_order([value]))


def _direction(kernel: Kernel, columns: Sequence[Value], column: Var) -> bool | None:
    """Whether columns lie along the inner domain, or across; None where neither is so."""
    layouts = {param.name: param.layout for param in kernel.params}
    inner = kernel.inner[-1]
    across, along = [], []
    for value in post_order(columns):
        if isinstance(value, Masked | CheckedIndex):
            return None
        if not isinstance(value, Load):
            continue
        places = [at for at in value.index if isinstance(at, IndexExpr)]
        if len(places) < len(value.index):
            return None
        offset = layouts[value.buffer].linear(places)
        across.append(stride_of(offset, column))
        along.append(stride_of(offset, inner))
    if _moves_by_ones(across):
        return False
    return True if _moves_by_ones(along) else None


def _moves_by_ones(strides: Sequence[IndexExpr | None]) -> bool:
    """Whether all that move along a variable lie side by side, and some do."""
    one = as_index(1)
    return any(each is one for each in strides) and all(
        each is not None and each.is_constant and each.constant in (0, 1) for each in strides
    )
