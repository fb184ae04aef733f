"""How large the tiles and the tasks of matrix products are."""

from __future__ import annotations

from plait_cpp_codegen.kernels.columns import NARROWEST
from plait_cpp_codegen.kernels.factors import Factors
from plait_cpp_codegen.kernels.plan import LoopPlan, extent_of
from plait_utils import dataclass

_SUMS = {64: 24, 32: 12, 16: 12}
"""How many sums stay in registers, by the bytes of a vector."""
_ROWS = {64: 6, 32: 4, 16: 4}
"""Of a tile, at most."""
_MOST_VECTORS = 8
"""Of columns in a tile: so many sums do not wait for each other, and memory is read well."""
_COLUMNS_PER_TASK, _ROWS_PER_TASK = 64, 48
_FEWEST = 8
"""Of what lanes go along: where there is less, other loops have longer vectors."""
_KEPT_BYTES = 1 << 17
"""Of what is computed for the rows of a task."""
_STREAMED = 1 << 17
"""Elements of a matrix of which one row after another is read for a single row, not tiles."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """The sizes of tiles and tasks."""

    lanes: int
    rows: int
    """Of a tile."""
    columns: int
    """Of a tile: in vectors where lanes are columns."""
    task_rows: int
    task_columns: int


def is_of_one_row(plan: LoopPlan, factors: Factors) -> bool:
    """Whether a row alone is better multiplied by reading the matrix as it lies in memory."""
    if factors.along or extent_of(factors.rows).as_int() > 1:
        return False
    points = extent_of(plan.kernel.inner) * factors.column.extent
    return points.as_int() > _STREAMED


def tiles_of(plan: LoopPlan, factors: Factors, vector_bytes: int) -> Tiles | None:
    """The tiles of a product; None where they would be of single lanes for the most part."""
    lanes, inner = plan.lanes, plan.kernel.inner
    rows, columns = extent_of(factors.rows).as_int(), factors.column.extent.as_int()
    sums = _SUMS[vector_bytes] // len(factors.sums)
    most = _ROWS[vector_bytes]
    if factors.sums[0].value.dtype.is_integer:  # beside sums is what columns add up to
        sums, most = sums * 2 // 3, _MOST_VECTORS // 2
    tall = _evenly(rows, min(most, max(sums // 2, 1)))
    if (inner[-1].extent if factors.along else factors.column.extent).as_int() < min(
        lanes, _FEWEST
    ):
        return None
    if factors.along:
        while lanes > inner[-1].extent.as_int():
            lanes //= 2
        wide = _MOST_VECTORS if tall == 1 else _MOST_VECTORS // 2
        while wide > 1 and (wide * tall > sums or wide > min(lanes, columns)):
            wide //= 2
        width = min(_COLUMNS_PER_TASK, -(-columns // wide) * wide)
    else:
        wide = max(min(sums // tall, _MOST_VECTORS, columns // lanes), 1)
        step = wide * lanes
        width = min(columns, max(_COLUMNS_PER_TASK // step * step, step))
        width = columns if columns <= _COLUMNS_PER_TASK else width
    kept = extent_of(inner).as_int() * 4 * max(len(factors.row_parts), 1)
    most = max(min(_ROWS_PER_TASK, _KEPT_BYTES // kept) // tall, 1) * tall
    return Tiles(lanes, tall, wide, min(rows, most), width)


def _evenly(rows: int, most: int) -> int:
    """Rows of a tile, where all tiles but the last have as many and no more than `most`."""
    return -(-rows // -(-rows // most))


def widths(tiles: Tiles, columns: int, along: bool) -> list[tuple[int, int]]:
    """The tiles that cover so many columns: of how many columns or vectors, and of which lanes."""
    found: list[tuple[int, int]] = []
    left, wide, lanes = columns, tiles.columns, 1 if along else tiles.lanes
    while left:
        if left >= wide * lanes:
            found.append((wide, lanes))
            left %= wide * lanes
        if wide > 1:
            wide = 1 if along else max(left // lanes, 1)
        else:
            lanes = lanes // 2 if lanes > NARROWEST else 1
    return found


def finish_lanes(lanes: int, columns: int) -> list[int]:
    """The vectors that cover so many columns, by their lanes."""
    found: list[int] = []
    while columns:
        if columns >= lanes:
            found.append(lanes)
            columns %= lanes
        lanes = lanes // 2 if lanes > NARROWEST else 1
    return found
