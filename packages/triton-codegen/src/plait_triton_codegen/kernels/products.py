"""Which kernels multiply matrices, and what they multiply.

A kernel like

    for i0: 512, i1: 768 inner r0: 1024
      reduce t0 = sum mul(to(p0[i0, r0], f32), to(p1[i1, r0], f32))
      store p2[i0, i1] = to(relu(%t0), bf16)

is a product of matrices: what is loaded for a row `i0` serves all columns `i1`, and the other way
round. Batches are variables that both factors depend on. Where rows are in groups with matrices of
their own, what is loaded for a row serves all columns, and for a column all rows of a group; what
is in groups is called rows, be it the result's columns. Where terms are in groups, each batch sums
up those of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from plait_ir_lowering import DType, Local, Op, Value, Var, atoms, post_order
from plait_scheduler import (
    Groups,
    Kernel,
    Let,
    Reduce,
    Statement,
    Store,
    TermGroups,
    sums_of,
    variables_of,
    without_groups,
    without_term_groups,
)
from plait_triton_codegen.kernels.literals import BYTES
from plait_triton_codegen.kernels.scaled_terms import scaled_terms, without_scale

_Found = TypeVar("_Found", Groups, TermGroups)

MOST_SUMS = 2
"""Of more products of the same rows, sums would not fit in registers."""
_LEAST_ROWS, _LEAST_COLUMNS, _LEAST_TERMS = 2, 16, 16
"""Less leaves most of what tensor cores multiply empty."""
_NARROW = (DType.f16, DType.bf16, *BYTES)
"""Floats of 8 bits are such that f16 and bf16 hold them exactly."""


@dataclass(frozen=True, slots=True)
class Sum:
    """One of the sums: of products of what a row and a column give, at each inner point.

    Both factors have the type in which they are multiplied: one of 16 or 8 bits, or f32.
    """

    name: str
    left: Value
    right: Value
    dtype: DType
    """Of the sum: f32 or i32."""
    scales: tuple[Value, ...] = ()
    """What products are multiplied by, in f32: for a row or a column, and blocks of terms."""


@dataclass(frozen=True, slots=True)
class Product:
    """A kernel that multiplies matrices."""

    batches: tuple[Var, ...]
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    inner: tuple[Var, ...]
    sums: tuple[Sum, ...]
    finish: tuple[Statement, ...]
    """What is done with the sums at each point of rows and columns."""
    groups: Groups | None = None
    """Of rows, where these have matrices of their own, that right factors are read of."""
    term_groups: TermGroups | None = None
    """Of terms, where each batch sums up those of its group alone."""
    scaled_terms: int = 0
    """Neighbouring terms of which all have the same scales, where products have some; else 0."""

    @property
    def dtype(self) -> DType:
        """The type in which the factors are multiplied that takes most room."""
        return max((each.left.dtype for each in self.sums), key=lambda dtype: dtype.itemsize)


def product_of(kernel: Kernel) -> Product | None:
    """The matrices that a kernel multiplies; None if it does something else."""
    found = sums_of(kernel)
    if found is None or not kernel.inner:
        return None
    reduces, finish = found
    if len(reduces) > MOST_SUMS or not any(isinstance(each, Store) for each in finish):
        return None
    params = {param.name: param for param in kernel.params}
    reduces, groups = _in_common(
        reduces, [without_groups(each.value, params, "group") for each in reduces]
    )
    reduces, term_groups = _in_common(
        reduces, [without_term_groups(each.value, params) for each in reduces]
    )
    sides = _sides(kernel.outer, reduces[0].value)
    if sides is None:
        return None
    batches, rows, columns = sides
    if groups is not None and [groups.row] == [var.expr for var in columns]:
        rows, columns = columns, rows
    sums: list[Sum] = []
    for reduce in reduces:
        made = _sum(reduce, frozenset(rows), frozenset(columns), kernel.inner)
        if made is None:
            return None
        sums.append(made)
    least = ((rows, _LEAST_ROWS), (columns, _LEAST_COLUMNS), (kernel.inner, _LEAST_TERMS))
    if not all(_is_long(part, number) for part, number in least):
        return None
    if groups is not None and (batches or len(rows) != 1 or groups.row is not rows[0].expr):
        return None
    if term_groups is not None and not _are_of_batches(term_groups, batches, kernel.inner):
        return None
    scaled = scaled_terms([scale for each in sums for scale in each.scales], kernel.inner)
    return Product(
        batches,
        rows,
        columns,
        kernel.inner,
        tuple(sums),
        _needed(finish),
        groups,
        term_groups,
        scaled,
    )


def _in_common(
    reduces: list[Reduce], found: Sequence[tuple[Value, _Found | None]]
) -> tuple[list[Reduce], _Found | None]:
    """The sums without the groups that are in all of them, and these."""
    common = found[0][1]
    if common is None or any(each != common for _, each in found):
        return reduces, None
    pairs = zip(reduces, found, strict=True)
    return [replace(each, value=value) for each, (value, _) in pairs], common


def _are_of_batches(groups: TermGroups, batches: tuple[Var, ...], inner: tuple[Var, ...]) -> bool:
    """Whether all terms of a program are of one group."""
    return [groups.term] == [var.expr for var in inner] and atoms(groups.group) <= {*batches}


def _needed(finish: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The stores, and what they need."""
    needed: set[str] = set()
    kept: list[Statement] = []
    for statement in reversed(finish):
        if isinstance(statement, Let) and statement.name not in needed:
            continue
        kept.append(statement)
        parts = post_order([statement.value])
        needed.update(part.name for part in parts if isinstance(part, Local))
    return tuple(reversed(kept))


def _is_long(variables: tuple[Var, ...], least: int) -> bool:
    """Whether there are so many points, those of open sizes taken to be many."""
    total = 1
    for var in variables:
        if not var.extent.is_constant:
            return True
        total *= var.extent.as_int()
    return total >= least


def _sides(
    outer: tuple[Var, ...], value: Value
) -> tuple[tuple[Var, ...], tuple[Var, ...], tuple[Var, ...]] | None:
    """The variables of batches, rows and columns; those of the last variable are columns."""
    if not (isinstance(value, Op) and value.name == "mul"):
        return None
    first, second = (variables_of(factor) for factor in value.args)
    alone = [var for var in outer if (var in first) != (var in second)]
    if not alone:
        return None
    right = first if alone[-1] in first else second
    rows = tuple(var for var in alone if var not in right)
    columns = tuple(var for var in alone if var in right)
    return tuple(var for var in outer if var not in alone), rows, columns


def _sum(
    reduce: Reduce, rows: frozenset[Var], columns: frozenset[Var], inner: tuple[Var, ...]
) -> Sum | None:
    """A sum as one of products of rows and columns, or None."""
    value = reduce.value
    if not (isinstance(value, Op) and value.name == "mul"):
        return None
    left, right = value.args
    if variables_of(left) & columns:
        left, right = right, left
    if variables_of(left) & columns or variables_of(right) & rows:
        return None
    scaled = [without_scale(factor, inner) for factor in (left, right)]
    scales: tuple[Value, ...] = ()
    if all(_narrow(factor).dtype in BYTES for factor, _ in scaled):
        (left, first), (right, second) = scaled
        scales = tuple(each for each in (first, second) if each is not None)
    factors = _factors(left, right)
    return None if factors is None else Sum(reduce.name, *factors, value.dtype, scales)


def _factors(left: Value, right: Value) -> tuple[Value, Value] | None:
    """Both factors in the type in which they are multiplied; None where there is none for them."""
    first, second = (_narrow(factor) for factor in (left, right))
    if left.dtype is DType.f32:
        kind = _common(first.dtype, second.dtype)
        return (_as(first, kind), _as(second, kind)) if kind else (left, right)
    if left.dtype is DType.i32 and first.dtype is second.dtype is DType.i8:
        return first, second
    return None


def _common(first: DType, second: DType) -> DType | None:
    """The narrowest type in which tensor cores multiply numbers of both; None but for f32."""
    if first is second or second in BYTES:
        first, second = second, first
    if first is second:
        return first
    if first in BYTES and second in _NARROW:
        return DType.f16 if second in BYTES else second
    return None


def _as(value: Value, dtype: DType) -> Value:
    return value if value.dtype is dtype else Op("to", [value], dtype)


def _narrow(factor: Value) -> Value:
    """What a factor is the same numbers as, in a narrower type that can be multiplied."""
    if isinstance(factor, Op) and factor.name == "to":
        (inner,) = factor.args
        if inner.dtype in (_NARROW if factor.dtype is DType.f32 else (DType.i8,)):
            return inner
    return factor
