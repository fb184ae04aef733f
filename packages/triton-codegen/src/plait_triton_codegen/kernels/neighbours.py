"""Tiles around the one that a rule has chosen, for timing to choose from.

By rule a tile suits most kernels of its form; which of its neighbours suits one kernel better,
arithmetic alone does not tell. Each form of a kernel has a table of steps, the likeliest first:
powers of two by which outer points, inner points and warps are multiplied. Beside these, rows may
be whole in registers or read block by block, the next blocks may be on their way or not, and
programs may stay for row after row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from plait_scheduler import Sort
from plait_triton_codegen.kernels.attention_blocks import LEAST_BLOCK
from plait_triton_codegen.kernels.space import FlatKernel
from plait_triton_codegen.kernels.tiles import (
    MAX_WARPS,
    MOST_PROGRAMS,
    THREADS_PER_WARP,
    Tile,
    is_column,
    power_of_two,
    programs_of,
)
from plait_triton_codegen.options import TritonOptions

MOST_NEIGHBOURS = 8
Step = tuple[int, int, int]
"""Logarithms of what outer points, inner points and warps are multiplied by."""

_MOST_PER_THREAD = 64
"""Elements of a thread, unless the rule's tile has as many: more are spilled."""
_LOOPED: Sequence[Tile] = (
    Tile(1, 4096, 8, False),
    Tile(1, 8192, 4, False),
    Tile(1, 1024, 2, False),
)
"""Blocks of longer rows, where the rule's tile has no turns: the first two that are shorter."""
_STAGES = (2, 3, 4)
_POINTWISE: Sequence[Step] = (
    *((1, 0, 0), (-1, 0, 0), (1, 0, 1), (-1, 0, -1)),
    *((0, 0, -1), (0, 0, 1), (2, 0, 1), (2, 0, 0)),
)
_TRANSPOSED: Sequence[Step] = (
    *((0, 0, -1), (-1, -1, -1), (-1, -1, -2), (0, -1, -1), (-1, 0, -1)),
    *((1, -1, 0), (-1, 1, 0), (0, 0, 1), (1, 0, 0), (0, 1, 0)),
)
_WHOLE_ROWS: Sequence[Step] = ((0, 0, 1), (0, 0, -1), (1, 0, 1), (1, 0, 0), (-1, 0, -1), (-1, 0, 0))
_LOOPED_ROWS: Sequence[Step] = ((0, 0, 1), (0, 0, -1), (0, 1, 1), (0, -1, -1), (0, 1, 0))
_COLUMNS: Sequence[Step] = (
    *((0, 0, 1), (2, -2, 0), (1, 0, 0), (0, 1, 0), (1, -1, 0)),
    *((-1, 0, 0), (-1, 1, 0), (0, 0, -1), (0, -1, 0), (1, 0, 1)),
)
_PAIRS: Sequence[Step] = (
    *((0, 0, 1), (0, 0, -1), (0, -1, 0), (-1, 0, 0), (-1, 0, -1), (0, 1, 0), (1, 0, 1)),
)
_STAGED_AT = 3
"""Behind how many steps the stages of a loop come."""


def pair_neighbours(rule: Tile) -> Iterator[Tile]:
    """Those of an attention or a mixture: blocks of rows, of keys, and of what is on its way."""
    blocks = [tile for step in _PAIRS if (tile := _moved(rule, step)) is not None]
    staged = [replace(rule, stages=each) for each in (rule.stages + 1, rule.stages - 1) if each > 0]
    for tile in (*blocks[:_STAGED_AT], *staged, *blocks[_STAGED_AT:]):
        if min(tile.xblock, tile.rblock) >= LEAST_BLOCK:
            yield tile


def flat_neighbours(flat: FlatKernel, rule: Tile, options: TritonOptions) -> Iterator[Tile]:
    """Those of all other kernels but products of matrices, the likeliest first."""
    for tile in _of_form(flat, rule, options):
        most = max(_MOST_PER_THREAD, _per_thread(rule))
        if _per_thread(tile) <= most and programs_of(flat, tile) <= MOST_PROGRAMS:
            yield tile


def _of_form(flat: FlatKernel, rule: Tile, options: TritonOptions) -> Iterator[Tile]:
    if flat.r is None:
        yield from _within(flat, rule, _POINTWISE)
    elif flat.tiled:
        yield from _within(flat, rule, _TRANSPOSED)
    elif any(isinstance(statement, Sort) for statement in flat.kernel.statements):
        yield from _within(flat, rule, _WHOLE_ROWS)
    else:
        yield from _rows(flat, rule, options)


def _rows(flat: FlatKernel, rule: Tile, options: TritonOptions) -> Iterator[Tile]:
    """Those of reductions and scans, along rows or down columns."""
    other = _looped(flat, rule) if rule.persistent else _whole(flat, rule, options)
    table = _COLUMNS if is_column(flat) else _WHOLE_ROWS if rule.persistent else _LOOPED_ROWS
    steps = [_in_one_block(flat, tile, options) for tile in _within(flat, rule, table)]
    staged = [replace(rule, stages=each) for each in _STAGES if each != rule.stages]
    if rule.persistent and rule.turns == 1:
        staged = []
    yield from (*steps[:_STAGED_AT], *other, *staged[-2:], *steps[_STAGED_AT:])


def _looped(flat: FlatKernel, rule: Tile) -> list[Tile]:
    """The same rows, block by block; and by programs that do not stay, where these do."""
    alone = [] if rule.turns == 1 else [replace(rule, turns=1, stages=0)]
    blocks = [] if is_column(flat) else [each for each in _LOOPED if each.rblock < rule.rblock]
    return [*alone, *blocks[:2]]


def _whole(flat: FlatKernel, rule: Tile, options: TritonOptions) -> list[Tile]:
    """The same rows, whole in registers where so many threads have room."""
    rnumel = flat.rnumel
    if rnumel is None or rnumel > options.max_persistent or is_column(flat):
        return []
    rblock = power_of_two(rnumel)
    return [Tile(1, rblock, warps, True) for warps in (MAX_WARPS, MAX_WARPS // 2)]


def _in_one_block(flat: FlatKernel, tile: Tile, options: TritonOptions) -> Tile:
    """A tile without a loop, where its block is as long as the rows; with one where it is not."""
    longest = options.max_persistent
    whole = flat.rnumel is not None and flat.rnumel <= min(tile.rblock, longest)
    return replace(tile, persistent=True, stages=0) if whole and tile.turns == 1 else tile


def _within(flat: FlatKernel, rule: Tile, steps: Sequence[Step]) -> Iterator[Tile]:
    """The tiles that some steps lead to, no larger than the kernel's domain."""
    for step in steps:
        tile = _moved(rule, step)
        if tile is not None and _fits(flat, tile):
            short = flat.rnumel is not None and tile.rblock < flat.rnumel
            looped = flat.r is not None and not flat.tiled
            yield replace(tile, persistent=False) if looped and short else tile


def _fits(flat: FlatKernel, tile: Tile) -> bool:
    outer, inner = flat.xnumel, flat.rnumel
    return (outer is None or tile.xblock <= power_of_two(outer)) and (
        inner is None or tile.rblock <= power_of_two(inner)
    )


def _moved(tile: Tile, step: Step) -> Tile | None:
    """A tile a step away, or None where there is none."""
    blocks = tile.xblock, tile.rblock, tile.num_warps
    outer, inner, warps = (
        block << by if by >= 0 else block >> -by for block, by in zip(blocks, step, strict=True)
    )
    made = replace(tile, xblock=outer, rblock=inner, num_warps=warps)
    enough = outer * inner >= THREADS_PER_WARP * warps
    return made if inner and 0 < warps <= MAX_WARPS and outer and enough else None


def _per_thread(tile: Tile) -> int:
    return tile.xblock * tile.rblock // (THREADS_PER_WARP * tile.num_warps)
