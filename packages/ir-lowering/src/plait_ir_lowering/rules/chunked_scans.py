"""Running sums and products on GPUs of rows so few that each is shared out among many programs.

A row is cut in chunks. The totals of all chunks are one reduction, what stands before each chunk is
a scan of these, and joins what a scan of the chunk alone gives:

    total[c] = x[c, 0] + ... + x[c, n - 1]
    before   = running sum of total
    y[c, i]  = before[c - 1] + (x[c, 0] + ... + x[c, i])

The row is read twice and written once, by kernels that run at the pace of memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Layout, Scan, TensorRef
from plait_ir_lowering.ir.index import IndexExpr, Var, as_index
from plait_ir_lowering.ir.ops import ReductionKind
from plait_ir_lowering.ir.values import IndexValue, Masked, Op, Value, carried
from plait_ir_lowering.tensors import TensorExpr, dimensions

LONGEST_BLOCK = 4096
"""Elements of a row that a GPU scans in one block."""
_FULL_GRID = 264
"""Programs that keep a large GPU busy: two for each multiprocessor."""
_FEW = 32
"""Programs that are too few for loops over whole rows."""
_COLUMNS = 32
"""Columns that a program takes together where neighbours in memory are in different rows."""
_LEAST_CHUNK = 128

_KINDS = {"add": (ReductionKind.SUM, 0), "mul": (ReductionKind.PROD, 1)}
"""For an operation how it reduces, and what changes nothing."""


def has_many_rows(x: TensorExpr, axis: int, enough: int = _FULL_GRID) -> bool:
    """Whether programs that each go along whole rows keep a GPU busy."""
    rows = math.prod(_numbers(size for n, size in enumerate(x.shape) if n != axis))
    return _programs(x, axis, rows) >= enough


def _programs(x: TensorExpr, axis: int, rows: int) -> int:
    behind = math.prod(_numbers(x.shape[axis + 1 :]))
    return rows if behind == 1 else rows // min(behind, _COLUMNS)


def _numbers(sizes: Iterable[IndexExpr]) -> list[int]:
    """Sizes, those that are not known as 1."""
    return [size.as_int() if size.is_constant else 1 for size in sizes]


def scans_in_loops(x: TensorExpr, axis: int) -> bool:
    """Whether rows too long for a block are scanned by loops, though they are rather few."""
    return has_many_rows(x, axis, _FEW)


def chunk_of(x: TensorExpr, axis: int) -> int | None:
    """How many elements of a row a chunk should have; None where no length divides the row.

    About as many as a block holds, fewer where programs would be too few.
    """
    if not all(size.is_constant for size in x.shape):
        return None
    extent = x.shape[axis].as_int()
    rows = math.prod(_numbers(size for n, size in enumerate(x.shape) if n != axis))
    wanted = LONGEST_BLOCK
    while wanted > _LEAST_CHUNK and _programs(x, axis, rows * (extent // wanted)) < _FULL_GRID:
        wanted //= 2
    lengths = [n for n in _divisors(extent) if n >= _LEAST_CHUNK and extent // n <= LONGEST_BLOCK]
    lengths = [n for n in lengths if n < extent]
    return min(lengths, key=lambda n: abs(math.log2(n / wanted)), default=None)


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def chunked_scan(
    ctx: LoweringContext, x: TensorExpr, value: Value, axis: int, operation: str, chunk: int
) -> TensorExpr:
    """`value`, over the dimensions of `x`, combined along `axis` in chunks of so many elements."""
    kind, neutral = _KINDS[operation]
    wide, result = value.dtype, ctx.result
    count = x.shape[axis].as_int() // chunk
    sizes = [*x.shape[:axis], as_index(count), as_index(chunk), *x.shape[axis + 1 :]]
    elements = TensorExpr(x.dims, value)

    outer = dimensions([size for n, size in enumerate(sizes) if n != axis + 1])
    inside = Var("r0", chunk)
    places = [var.expr for var in outer]
    along = places[axis] * chunk + inside.expr
    element = elements.at([*places[:axis], along, *places[axis + 1 :]])
    totals = ctx.combined(outer, (inside,), kind, element, "totals")
    before = _scanned(ctx, outer, axis, totals.at(places), operation, "before")

    dims = dimensions(sizes)
    points = [dim.expr for dim in dims]
    along = points[axis] * chunk + points[axis + 1]
    element = elements.at([*points[:axis], along, *points[axis + 2 :]])
    own = _scanned(ctx, dims, axis + 1, element, operation, "chunks").at(points)
    is_later = Op("gt", [IndexValue(points[axis]), constant(0, DType.i64)])
    earlier = before.at([*points[:axis], points[axis] - 1, *points[axis + 2 :]])
    start = Masked(is_later, earlier, constant(neutral, wide))
    split = result.new_empty([int(size.as_int()) for size in sizes])
    whole = ctx.pointwise(dims, cast(Op(operation, [start, own]), ctx.dtype_of(result)), split)
    assert whole.ref is not None
    own_dims = dimensions(list(result.shape))
    at = [dim.expr for dim in own_dims]
    load = whole.at([*at[:axis], at[axis] // chunk, at[axis] % chunk, *at[axis + 1 :]])
    return TensorExpr(own_dims, load, TensorRef(whole.ref.buffer, Layout.of(list(result.shape))))


def _scanned(
    ctx: LoweringContext,
    dims: tuple[Var, ...],
    axis: int,
    value: Value,
    operation: str,
    name: str,
) -> TensorExpr:
    (a,), (b,) = carried("a", [value.dtype]), carried("b", [value.dtype])
    body = Scan(dims, dims[axis], value, Op(operation, [a, b]), a)
    return ctx.computed(body, dims, value.dtype, name)
