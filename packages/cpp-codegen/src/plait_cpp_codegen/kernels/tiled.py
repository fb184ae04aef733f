"""Loops that read a matrix along its columns and write rows, in tiles.

A vector of a row whose elements lie far apart in memory touches a line of the cache for each lane,
of which the next row needs the rest. A tile is read as it lies in memory, turned into rows by
shuffles of vectors, and kept in the nearest cache; the rows of the tile are then computed from it:

    for (i0: 64 rows, i1: 64 columns)
      tile[i0, i1] = p0[i1, i0]          16 by 16 at a time
      for (i0: these rows) for (i1: these columns, in vectors) p1[i0, i1] = f(tile[i0, i1])

What a tile reads lies in pieces, of which no machine guesses the next. So where matrices lie in
memory, each vector asks for one of the next tile: 4096 by 4096 floats, and as many added, take 7.6
instead of 8.8 ms (two threads of an AMD EPYC, Zen 4). Tiles of 16 by 256, 32 by 128 and 128 by 32
take 11 to 12 ms, pieces of another width in the table make no difference.
"""

from __future__ import annotations

from collections.abc import Iterator

from plait_cpp_codegen.kernels.choices import RULE
from plait_cpp_codegen.kernels.columns import NARROWEST, ColumnWriter
from plait_cpp_codegen.kernels.index import kernel_index
from plait_cpp_codegen.kernels.pieces import indented
from plait_cpp_codegen.kernels.plan import LoopPlan, extent_of
from plait_cpp_codegen.kernels.ranges import Range
from plait_cpp_codegen.kernels.row_tables import row_tables
from plait_cpp_codegen.kernels.sizes import used_if, varying_size
from plait_cpp_codegen.kernels.tasks import Tasks, decoded, divisor
from plait_cpp_codegen.kernels.types import MEMORY
from plait_ir_lowering import (
    IndexExpr,
    Layout,
    Load,
    Masked,
    Value,
    Var,
    as_index,
    post_order,
    stride_of,
)
from plait_scheduler import Access, Kernel, estimate
from plait_utils import dataclass

_FEWEST = 8
"""So many rows and columns are worth a tile."""
_BYTES = 32768
"""Of all tiles of a kernel at most, and of larger ones than the rule's four times as many."""


_FAR = 1 << 22
"""Bytes of a matrix from which on its next tile is asked for: the second cache holds no more."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """The loads of a kernel that are read in tiles."""

    rows: Var
    """The outer variable along which they lie next to each other in memory."""
    loads: tuple[Load, ...]
    side: int

    def tasks(self, plan: LoopPlan) -> Tasks:
        """One for each tile; those of a block of columns follow each other."""
        blocks = _blocks(self.rows, self.side) * _blocks(plan.kernel.outer[-1], self.side)
        return Tasks(extent_of(self.around(plan)) * blocks, as_index(self.side * self.side), blocks)

    def around(self, plan: LoopPlan) -> tuple[Var, ...]:
        """The outer variables that are no tile's."""
        return tuple(var for var in plan.kernel.outer[:-1] if var is not self.rows)


def tiling(plan: LoopPlan) -> Tiling | None:
    """The tiles of a kernel of outer points; None where it needs none."""
    kernel, vector = plan.kernel, plan.vector
    if vector is None or kernel.inner or plan.along_rows or plan.lanes == 1:
        return None
    if estimate(vector.extent) < _FEWEST or row_tables(plan) is not None:
        return None
    read = {p.name: p.layout for p in kernel.params if p.access is Access.READ}
    best: tuple[Var | None, tuple[Load, ...]] = (None, ())
    for rows in kernel.outer[:-1]:
        loads = tuple(
            load
            for load in _certain_loads(kernel)
            if load.buffer in read and _is_across(_offset(load, read[load.buffer]), vector, rows)
        )
        if estimate(rows.extent) >= _FEWEST and len(loads) > len(best[1]):
            best = rows, loads
    if best[0] is None:
        return None
    side, nbytes = plan.choices.tile_side, sum(load.dtype.itemsize for load in best[1])
    most = _BYTES if side <= RULE.tile_side else 4 * _BYTES
    side = max(side, plan.lanes)
    while side > plan.lanes and side * side * nbytes > most:
        side //= 2
    return Tiling(best[0], best[1], side) if side * side * nbytes <= most else None


def _certain_loads(kernel: Kernel) -> Iterator[Load]:
    """The loads at plain places that happen at every point, of elements that vectors shuffle."""
    seen: set[Value] = set()
    stack: list[Value] = [statement.value for statement in kernel.statements]
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, Load) and not value.operands and value.dtype.itemsize <= 8:
            yield value
        stack += (value.mask, value.other) if isinstance(value, Masked) else value.operands


def _offset(load: Load, layout: Layout) -> IndexExpr:
    return layout.linear([at for at in load.index if isinstance(at, IndexExpr)])


def _is_across(offset: IndexExpr, vector: Var, rows: Var) -> bool:
    """Whether rows, not the points of a vector, lie next to each other."""
    along = stride_of(offset, vector)
    if along is None or (along.is_constant and abs(along.as_int()) < _FEWEST):
        return False
    return stride_of(offset, rows) is as_index(1)


def _blocks(var: Var, side: int) -> IndexExpr:
    return (var.extent + (side - 1)) // side


@dataclass(slots=True)
class TiledWriter(ColumnWriter):
    """Writes one kernel; see the module's text."""

    def _column_mode(self) -> list[str]:
        tiles = tiling(self.plan)
        assert tiles is not None
        rows, vector, side = tiles.rows, self.kernel.outer[-1], tiles.side
        down, across = _blocks(rows, side), _blocks(vector, side)
        declared, fill = self._tiles(tiles)
        parts = self._parts()
        points = [self._point(number, part) for number, part in enumerate(parts)]
        loops = (
            self._whole(across, as_index(side))
            if len(parts) == 1
            else self._one_by_one(parts, across)
        )
        r, count, height = rows.name, _count(down * across), _count(down)
        return [
            *declared,
            "for (int64_t task = begin; task < end; ++task) {",
            f"  const int64_t row = task / {count}, tile = task % {count}; (void)row;",
            *indented(decoded(tiles.around(self.plan), "row")),
            f"  const int64_t top = tile % {height} * {side};",
            f"  const int64_t first = tile / {height} * {side};",
            *indented(_until("below", f"top + {side}", kernel_index(rows.extent))),
            *indented(_until("last", f"first + {side}", kernel_index(vector.extent))),
            *indented(fill),
            f"  for (int64_t {r} = top; {r} < below; ++{r}) {{",
            "    int64_t at = first;",
            *indented(self.hoisted, 2),
            *(f"    {line}" for point in points for line in point),
            *indented(loops, 2),
            "  }",
            "}",
        ]

    def _point(self, number: int, part: Range) -> list[str]:
        """With what it asks for."""
        head, lanes, *rest = ColumnWriter._point(self, number, part)
        return [head, lanes, *indented(self._asked_ahead(part)), *rest]

    def _asked_ahead(self, part: Range) -> list[str]:
        """Asks for what the next tile down the rows reads, a vector for each."""
        tiles = tiling(self.plan)
        assert tiles is not None
        rows, vector, side = tiles.rows.name, self.kernel.outer[-1].name, tiles.side
        far = {
            p.name: p.layout
            for p in self.kernel.params
            if p.access is Access.READ and estimate(p.layout.numel) * p.dtype.itemsize >= _FAR
        }
        lines: dict[str, None] = {}
        for load in post_order([statement.value for statement in part.statements]):
            if not isinstance(load, Load) or load.operands or load.buffer not in far:
                continue
            offset = _offset(load, far[load.buffer])
            down, across = f"{rows} + {side}", vector
            if load in tiles.loads:  # its pieces lie along rows: the tile's corners change places
                down, across = f"top + {side} + ({vector} - first)", f"first + ({rows} - top)"
            elif stride_of(offset, self.kernel.outer[-1]) is not as_index(1):
                continue
            lines[
                f"if (L > 1) {{ const int64_t down = {down}, across = {across}, {rows} = down, "
                f"{vector} = across; "
                f"__builtin_prefetch({load.buffer} + {kernel_index(offset)}); }}"
            ] = None
        return list(lines)

    def _narrow_columns(self, columns: IndexExpr, blocks: IndexExpr, rest: int | None) -> list[str]:
        """In words that tiles of all sizes share."""
        lanes, lines = self.plan.lanes, []
        while lanes > NARROWEST:
            lanes //= 2
            point = f"point0(Lanes<{lanes}>{{}}, at); at += {lanes};"
            lines.append(used_if(f"if (at + {lanes} <= last) {{ {point} }}", rest != 0))
        return lines

    def _tiles(self, tiles: Tiling) -> tuple[list[str], list[str]]:
        """Declares tiles and fills them; from here on they are looked up."""
        rows, vector, side = tiles.rows, self.kernel.outer[-1], tiles.side
        layouts = {param.name: param.layout for param in self.kernel.params}
        declared: list[str] = []
        fill: list[str] = []
        for number, load in enumerate(tiles.loads):
            offset = _offset(load, layouts[load.buffer])
            stride = stride_of(offset, vector)
            assert stride is not None
            declared.append(f"alignas(64) {MEMORY[load.dtype]} tile{number}[{side * side}];")
            fill.append(
                f"{{ const int64_t {rows.name} = top, {vector.name} = first; "
                f"transpose<{self.plan.lanes}>({load.buffer} + {kernel_index(offset)}, "
                f"{kernel_index(stride)}, below - top, last - first, tile{number}, {side}); }}"
            )
            place = f"tile{number} + ({rows.name} - top) * {side} + ({vector.name} - first)"
            self.tables[load] = place
        return declared, fill


def _count(blocks: IndexExpr) -> str:
    return varying_size(max(blocks.as_int(), 1)) if blocks.is_constant else divisor(blocks)


def _until(name: str, end: str, extent: str) -> list[str]:
    return [f"const int64_t {name} = {end} < {extent} ? {end} : {extent};"]
