"""Sums of floats at computed places in a fixed order, on GPUs, as deterministic algorithms ask for.

Points with the same coordinates in what they are scattered to, but for those that are variables of
their own (columns), are one row's. Few pairs of rows and points are all looked at:

    y[row, col] = x[row, col] + sum over points of (keys[point] == row ? value[point, col] : 0)

Otherwise a stable sort, ATen's, brings the points of a row next to each other, and running sums go
along these, which begin anew where a row does. So one row may have all points, or each its own:

    sorted, order = sort(keys)
    sums[at, col] = value[order[at], col] + (sorted[at] == sorted[at - 1] ? sums[at - 1, col] : 0)
    last[sorted[at]] = at, where sorted[at] != sorted[at + 1]
    y[row, col] = x[row, col] + sums[last[row], col]

Sums go along chunks first, the totals of these along chunks of chunks, and so on. What stands
before a chunk is added where it is read, to a row that begins in a chunk before (G. E. Blelloch:
Prefix Sums and Their Applications, 1990, on segmented scans). Which elements are added to which
follows from the sizes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import ExternCall, Scan, Scatter, row_major
from plait_ir_lowering.ir.index import ZERO, IndexExpr, Var, as_index
from plait_ir_lowering.ir.index_queries import atoms
from plait_ir_lowering.ir.ops import ReductionKind, ScatterKind
from plait_ir_lowering.ir.values import (
    IndexValue,
    Load,
    Masked,
    Op,
    Value,
    carried,
    packed,
    post_order,
)
from plait_ir_lowering.rules.gathering import (
    Place,
    as_value,
    gathered,
    integer,
    readable,
    unflattened,
)
from plait_ir_lowering.rules.writes import Writes
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_utils import dataclass

MOST_PAIRS = 1 << 24
"""Pairs of elements of the result and points up to which all are looked at: that many comparisons
are reckoned to take a GPU some 20 us, and a sort with what follows three times that."""
MOST_SUMS = 1 << 28
"""Running sums that are kept: of float32 these are 1 GiB, which ATen's kernel does not take; with
more elements it is called."""
_MOST_KEYS = (1 << 31) - 1
"""Rows, and points, that 32 bits count. A sort of keys of 64 bits takes twice the time."""
_CHUNKS = ((32, 64), (8, 256), (1, 1024))
"""For so many columns and more, points of a chunk: a program has about 2048 elements, and columns
enough to read whole sectors."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The points of a scatter by the rows that they are added to."""

    ranges: tuple[Var, ...]
    """All variables of the scatter."""
    points: tuple[Var, ...]
    """Those that rows are told by."""
    columns: dict[Var, int]
    """The others, each with the dimension whose coordinate it is."""
    sizes: tuple[int, ...]
    """The sizes of all dimensions of the result."""

    @property
    def count(self) -> int:
        """How many points there are."""
        return math.prod(var.extent.as_int() for var in self.points)

    @property
    def width(self) -> int:
        """How many columns there are."""
        return math.prod(var.extent.as_int() for var in self.columns)

    @property
    def axes(self) -> list[int]:
        """The dimensions that rows are counted in, row-major."""
        columns = self.columns.values()
        return [axis for axis in range(len(self.sizes)) if axis not in columns]

    @property
    def number(self) -> int:
        """How many rows there are."""
        return math.prod(self.sizes[axis] for axis in self.axes)

    def row(self, dims: Sequence[Var]) -> IndexExpr:
        """The row of an element of the result."""
        place: IndexExpr = ZERO
        for axis in self.axes:
            place = place * self.sizes[axis] + dims[axis].expr
        return place

    def columns_at(self, dims: Sequence[Var]) -> list[IndexExpr]:
        """The columns of an element of the result, in the order of `columns`."""
        return [dims[axis].expr for axis in self.columns.values()]


def rows_of(writes: Writes, shape: Sequence[IndexExpr]) -> Rows | None:
    """The rows that points go to; None where there are too many, or sizes are not known."""
    if not all(size.is_constant for size in (*shape, *(var.extent for var in writes.ranges))):
        return None
    mixed = _variables([at for at in (*writes.place, writes.counted) if isinstance(at, Value)])
    plain = [(axis, at) for axis, at in enumerate(writes.place) if isinstance(at, IndexExpr)]
    columns: dict[Var, int] = {}
    for var in writes.ranges:
        axes = [axis for axis, at in plain if var in atoms(at)]
        if var not in mixed and len(axes) == 1 and writes.place[axes[0]] is var.expr:
            columns[var] = axes[0]
    points = tuple(var for var in writes.ranges if var not in columns)
    sizes = tuple(size.as_int() for size in shape)
    rows = Rows(writes.ranges, points, columns, sizes)
    if max(rows.number, rows.count) >= _MOST_KEYS or not rows.count * rows.width:
        return None
    few = math.prod(sizes) * rows.count <= MOST_PAIRS
    return rows if few or rows.count * rows.width <= MOST_SUMS else None


def _variables(values: Sequence[Value]) -> set[object]:
    """What index expressions in values depend on."""
    found: set[object] = set()
    for value in post_order(values):
        if isinstance(value, IndexValue):
            found |= atoms(value.expr)
        elif isinstance(value, Load):
            found.update(*(atoms(at) for at in value.index if isinstance(at, IndexExpr)))
    return found


def ordered_sum(
    ctx: LoweringContext,
    start: TensorExpr,
    writes: Writes,
    value: Value,
    target: torch.Tensor,
) -> TensorExpr | None:
    """A buffer like `target`: `start`, with floats `value` added to it at the places of points.

    Sums of floats of 16 bits are those of f32, rounded once. None where ATen is to be called.
    """
    rows = rows_of(writes, [as_index(size) for size in target.shape])
    if rows is None:
        return None
    wide = DType.f32 if value.dtype.is_reduced_precision else value.dtype
    keys = _keys(ctx, writes, rows)
    elements = readable(ctx, TensorExpr(writes.ranges, value))
    dims = dimensions([*rows.sizes])
    few = math.prod(rows.sizes) * rows.count <= MOST_PAIRS
    total = (_of_all_pairs if few else _of_runs)(ctx, rows, keys, elements, dims, wide)
    old = start.at([dim.expr for dim in dims])
    is_nothing = Op("eq", [total, constant(0, wide)])  # 0.0 added to -0.0 would change it
    made = cast(Op("add", [cast(old, wide), total]), value.dtype)
    return ctx.pointwise(dims, Op("where", [is_nothing, cast(old, value.dtype), made]), target)


def _keys(ctx: LoweringContext, writes: Writes, rows: Rows) -> TensorExpr:
    """The row of each point, as a row of i32; one behind all for points that are not counted."""
    key: Value = constant(0, DType.i64)
    for axis in rows.axes:
        if rows.sizes[axis] != 1 or isinstance(writes.place[axis], Value):
            wider = Op("mul", [key, integer(rows.sizes[axis])])
            key = Op("add", [wider, as_value(writes.place[axis])])
    if writes.counted is not None:
        key = Op("where", [writes.counted, key, integer(rows.number)])
    (at,) = dimensions([rows.count])
    return ctx.intermediate((at,), cast(_at_points(rows, key, at.expr), DType.i32), "rows")


def _at_points(rows: Rows, value: Value, place: IndexExpr) -> Value:
    """A value over the points alone, at the one that is counted row-major by `place`."""
    shape = [var.extent for var in rows.points]
    steps = zip(row_major(shape), shape, strict=True)
    return TensorExpr(rows.points, value).at([place // step % size for step, size in steps])


def _of_all_pairs(
    ctx: LoweringContext,
    rows: Rows,
    keys: TensorExpr,
    elements: TensorExpr,
    dims: tuple[Var, ...],
    wide: DType,
) -> Value:
    """For each element of the result the sum over all points of those of its row."""
    points = dimensions([var.extent for var in rows.points], "r")
    place: IndexExpr = ZERO
    for point in points:
        place = place * point.extent + point.expr
    own = dict(zip(rows.points, (point.expr for point in points), strict=True))
    own |= dict(zip(rows.columns, rows.columns_at(dims), strict=True))
    element = cast(elements.at([own[var] for var in rows.ranges]), wide)
    is_here = Op("eq", [keys.at([place]), cast(IndexValue(rows.row(dims)), DType.i32)])
    value = Op("where", [is_here, element, constant(0, wide)])
    points = points or dimensions([1], "r")  # a scatter of one point without a variable
    sums = ctx.combined(dims, points, ReductionKind.SUM, value, "sums")
    return sums.at([dim.expr for dim in dims])


def _of_runs(
    ctx: LoweringContext,
    rows: Rows,
    keys: TensorExpr,
    elements: TensorExpr,
    dims: tuple[Var, ...],
    wide: DType,
) -> Value:
    """For each element of the result the running sum at its row's last point; 0 without any."""
    ordered, order = _sorted(ctx, rows, keys)
    last = _last_points(ctx, rows, ordered)
    levels = _running_sums(ctx, rows, ordered, order, elements, wide)
    row = rows.row(dims)
    at = cast(last.at([row]), DType.i64)
    key = cast(IndexValue(row), DType.i32)
    total = _total_at(levels, ordered, key, at, rows.columns_at(dims))
    return Masked(Op("ge", [at, integer(0)]), total, constant(0, wide))


def _sorted(ctx: LoweringContext, rows: Rows, keys: TensorExpr) -> tuple[TensorExpr, TensorExpr]:
    """The keys in ascending order, and the point of each."""
    assert keys.ref is not None
    call = ExternCall("aten::sort", "stable", (keys.ref, True, 0, False))
    likes = [ctx.result.new_empty((rows.count,), dtype=of) for of in (torch.int32, torch.int64)]
    ordered, order = ctx.define_buffers(call, likes, "order")
    return ordered, order


def _last_points(ctx: LoweringContext, rows: Rows, ordered: TensorExpr) -> TensorExpr:
    """For each row where its last point stands in the order, as i32; -1 without any.

    All other points are told of one place behind the rows, where any stays.
    """
    (place,) = dimensions([rows.number + 1])
    start = ctx.intermediate((place,), constant(-1, DType.i32), "none")
    assert start.ref is not None
    (at,) = dimensions([rows.count], "w")
    own, behind = ordered.at([at.expr]), IndexValue(at.expr + 1)
    is_inside = Op("lt", [behind, integer(rows.count)])
    following = Masked(is_inside, ordered.at([at.expr + 1]), constant(-1, DType.i32))
    row = Op("where", [Op("ne", [own, following]), cast(own, DType.i64), integer(rows.number)])
    value = cast(IndexValue(at.expr), DType.i32)
    body = Scatter(start.ref.buffer, (at,), (row,), ScatterKind.ASSIGN, value)
    like = ctx.result.new_empty((rows.number + 1,), dtype=torch.int32)
    return ctx.define(body, like, "last")


@dataclass(frozen=True, slots=True)
class Level:
    """Running sums along chunks of what the level below has chunks of; of points, at first."""

    sums: TensorExpr
    """Chunks, elements of each, and columns."""
    stride: int
    """How many points an element stands for."""

    @property
    def chunk(self) -> int:
        """Elements of a chunk."""
        return self.sums.shape[1].as_int()

    @property
    def count(self) -> int:
        """How many chunks there are."""
        return self.sums.shape[0].as_int()


def _running_sums(
    ctx: LoweringContext,
    rows: Rows,
    ordered: TensorExpr,
    order: TensorExpr,
    elements: TensorExpr,
    wide: DType,
) -> list[Level]:
    """The levels of sums along the ordered points, the last of one chunk."""
    longest = next(chunk for columns, chunk in _CHUNKS if rows.width >= columns)

    def of_points(at: IndexExpr, columns: Sequence[IndexExpr]) -> Value:
        point = unflattened(order.at([at]), [var.extent for var in rows.points])
        place: dict[Var, Place] = dict(zip(rows.points, point, strict=True))
        place |= dict(zip(rows.columns, columns, strict=True))
        return cast(gathered(elements, [place[var] for var in rows.ranges]), wide)

    levels = [_level(ctx, rows, ordered, of_points, 1, rows.count, longest)]
    while levels[-1].count > 1:
        below = levels[-1]

        def of_chunks(at: IndexExpr, columns: Sequence[IndexExpr], below: Level = below) -> Value:
            return below.sums.at([at, as_index(below.chunk - 1), *columns])

        stride = below.stride * below.chunk
        levels.append(_level(ctx, rows, ordered, of_chunks, stride, below.count, longest))
    return levels


def _level(
    ctx: LoweringContext,
    rows: Rows,
    ordered: TensorExpr,
    element: Callable[[IndexExpr, Sequence[IndexExpr]], Value],
    stride: int,
    count: int,
    longest: int,
) -> Level:
    """The running sums of `count` elements, each of `stride` points, along chunks."""
    chunk = min(count, longest)
    chunks = -(-count // chunk)
    dims = dimensions([chunks, chunk, *(var.extent for var in rows.columns)])
    at = dims[0].expr * chunk + dims[1].expr
    value = element(at, [dim.expr for dim in dims[2:]])
    begins = Op("eq", [IndexValue(at), integer(0)])
    before = ordered.at([at * stride - 1])
    end = Op("minimum", [IndexValue(at * stride + (stride - 1)), integer(rows.count - 1)])
    differs = cast(Op("ne", [before, gathered(ordered, [end])]), DType.i32)
    starts: Value = Masked(Op("logical_not", [begins]), differs, constant(1, DType.i32))
    if chunks * chunk != count:
        exists = Op("lt", [IndexValue(at), integer(count)])
        value = Masked(exists, value, constant(0, value.dtype))
        starts = Masked(exists, starts, constant(0, DType.i32))
    dtypes = [DType.i32, value.dtype]
    a, b = carried("a", dtypes), carried("b", dtypes)
    is_new = Op("ne", [b[0], constant(0, DType.i32)])
    both = Op("where", [is_new, b[1], Op("add", [a[1], b[1]])])
    combine = packed([Op("bitwise_or", [a[0], b[0]]), both])
    body = Scan(dims, dims[1], packed([starts, value]), combine, a[1])
    return Level(ctx.computed(body, dims, value.dtype, "runs"), stride)


def _total_at(
    levels: Sequence[Level],
    ordered: TensorExpr,
    key: Value,
    at: Value,
    columns: Sequence[IndexExpr],
) -> Value:
    """The whole sum of a row, whose last point is in the element `at` of the first level."""
    level, *above = levels
    if not above:
        return gathered(level.sums, [ZERO, at, *columns])
    size = integer(level.chunk)
    chunk, inside = Op("truncdiv", [at, size]), Op("rem", [at, size])
    total = gathered(level.sums, [chunk, inside, *columns])
    before = Op("sub", [Op("mul", [chunk, integer(level.chunk * level.stride)]), integer(1)])
    is_later = Op("gt", [chunk, integer(0)])
    same = Op("eq", [gathered(ordered, [before]), key])
    goes_on = Masked(is_later, same, constant(False, DType.bool_))
    earlier = Op("sub", [chunk, integer(1)])
    rest = _total_at(above, ordered, key, earlier, columns)
    return Op("add", [Masked(goes_on, rest, constant(0, total.dtype)), total])
