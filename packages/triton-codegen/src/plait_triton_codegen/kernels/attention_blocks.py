"""Which blocks of queries and keys a program of an attention takes, and with how many warps.

A block of queries and the sums of its rows stay in registers; blocks of keys and values pass
through shared memory, the next ones on their way while one is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait_triton_codegen.kernels.tiles import Tile, power_of_two

LEAST_BLOCK = 16
"""What tensor cores multiply has at least as many rows and columns."""
_MUCH_SHARED_BYTES = 200 * 1024
"""Shared memory of a program that GPUs since sm_90 have for data centres."""
_LAID_OUT_ANEW = 1 << 11
"""Bytes of shared memory by which numbers of rows move between threads."""
_WIDE_WARPS = 8
"""Where the places of pairs take 64 bits, registers of so many warps hold them."""

_NARROW = (
    (64, Tile(128, 64, 4, False, 3)),
    (128, Tile(128, 64, 8, False, 3)),
    (128, Tile(128, 64, 8, False, 2)),
    (256, Tile(128, 64, 8, False, 2)),
    (256, Tile(64, 32, 8, False, 2)),
)
"""For elements of 16 bits, by the longest row of a query or a value: the first that fits."""
_WIDE = (
    (64, Tile(64, 32, 8, False, 2)),
    (128, Tile(32, 16, 8, False, 2)),
    (256, Tile(16, 32, 8, False, 2)),
)
"""For f32, whose products no tensor core takes: more would not fit in registers."""
_TF32 = (
    (64, Tile(128, 32, 4, False, 2)),
    (128, Tile(64, 32, 8, False, 2)),
    (256, Tile(32, 32, 8, False, 2)),
)
"""For f32 that is multiplied by its first bits."""

_MIXED_ROOMY = (
    (64, 128, Tile(128, 64, 8, False, 2)),
    (128, 256, Tile(64, 64, 4, False, 2)),
    (256, 256, Tile(64, 32, 8, False, 1)),
    (256, 512, Tile(32, 32, 8, False, 2)),
)
"""For mixtures of elements of 16 bits on GPUs with much shared memory, which read factors from
there, by the longest row that is multiplied and by the elements of a row of all results: the first
that fits."""
_MIXED_SHARED = (_MIXED_ROOMY[0], (128, 256, Tile(128, 64, 8, False, 2)))
"""Before those on such GPUs, where rows are summed over a group: a loop more takes registers, of
which each thread of half as many warps would have too few."""
_MIXED_PLACED = ((64, 128, Tile(64, 32, 4, False, 2)), (128, 256, Tile(128, 32, 8, False, 2)))
"""Before those, where weights are added to places: these, and sums of diagonals, take registers.
The gradients of queries and of a table of distances, 4 by 16 heads of 64 by 2048 by 2048, took an
H200 0.70 ms in such blocks, 1.13 in blocks of 128 by 8 warps, 1.06 without sums of diagonals."""
_MIXED_NARROW = (
    (64, 128, Tile(64, 32, 4, False, 2)),
    (128, 256, Tile(64, 32, 8, False, 2)),
    (256, 512, Tile(32, 32, 8, False, 1)),
)
"""On other GPUs, which read them into registers."""
_MIXED_WIDE = (
    (64, 128, Tile(32, 32, 8, False, 2)),
    (128, 256, Tile(32, 16, 8, False, 2)),
    (256, 512, Tile(16, 16, 8, False, 1)),
)
_MIXED_TF32 = (
    (64, 128, Tile(64, 32, 8, False, 2)),
    (128, 256, Tile(32, 32, 8, False, 2)),
    (256, 512, Tile(32, 16, 8, False, 1)),
)


def attention_tile(
    rows: int | None,
    keys: int | None,
    depth: int,
    width: int,
    *,
    itemsize: int,
    tf32: bool,
    pair_bytes: int,
    wide: bool,
    shared: int,
) -> Tile:
    """The blocks for queries of `depth` elements and values of `width`, padded to powers of two.

    `rows` and `keys` are None where only a call knows them; `pair_bytes` is what the score reads
    for each pair of these, at places of 64 bits if they are `wide`; `shared` is the bytes of shared
    memory that a program may have.
    """
    longest = max(depth, width)
    table = _NARROW if itemsize <= 2 else _TF32 if tf32 else _WIDE
    fitting = [tile for limit, tile in table if longest <= limit]
    bytes_of = (itemsize * depth, itemsize * (depth + width), pair_bytes)
    usual = next(
        (tile for tile in fitting if _shared_bytes(tile, *bytes_of) <= shared),
        replace(fitting[-1], stages=1),
    )
    return _shrunk(usual, rows, keys, wide and pair_bytes > 0)


def mixture_tile(
    rows: int | None,
    places: int | None,
    depths: Sequence[int],
    widths: Sequence[int],
    *,
    itemsize: int,
    tf32: bool,
    pair_bytes: int,
    wide: bool,
    shared: int,
    grouped: bool,
    placed: bool,
) -> Tile:
    """The blocks for factors of `depths` elements and values of `widths`, padded to powers of two;
    all else as for an attention.

    Rows of the first factors stay in shared memory, where those of the others pass; sums of all
    results stay in registers, for all of a group where they are `grouped`; `placed` is whether
    weights are added to places of their own.
    """
    longest, made = max([*depths, *widths]), sum(widths)
    first = _MIXED_PLACED if placed else _MIXED_SHARED if grouped else ()
    narrow = (*first, *_MIXED_ROOMY) if shared >= _MUCH_SHARED_BYTES else _MIXED_NARROW
    table = narrow if itemsize <= 2 else _MIXED_TF32 if tf32 else _MIXED_WIDE
    fitting = [tile for limit, most, tile in table if longest <= limit and made <= most]

    def needed(tile: Tile) -> int:
        turn = tile.rblock * sum(depths) * itemsize + tile.xblock * tile.rblock * pair_bytes
        return tile.xblock * sum(depths) * itemsize + tile.stages * turn + _LAID_OUT_ANEW

    last = table[-1][-1]
    usual = next((tile for tile in fitting if needed(tile) <= shared), replace(last, stages=1))
    return _shrunk(usual, rows, places, wide and pair_bytes > 0)


def _shrunk(tile: Tile, rows: int | None, places: int | None, wide: bool) -> Tile:
    """A tile with no more rows and places than there are, and warps for them."""
    xblock, rblock, warps = tile.xblock, tile.rblock, tile.num_warps
    if rows is not None:
        xblock = min(xblock, max(power_of_two(rows), LEAST_BLOCK))
    if places is not None:
        rblock = min(rblock, max(power_of_two(places), LEAST_BLOCK))
    if wide:
        warps = max(warps, _WIDE_WARPS)
    warps = max(warps * xblock // tile.xblock, min(warps, 2))
    return Tile(xblock, rblock, warps, False, tile.stages)


def _shared_bytes(tile: Tile, query_bytes: int, key_bytes: int, pair_bytes: int) -> int:
    """Shared memory of the queries, and of what is on its way of keys, values and pairs."""
    turn = tile.rblock * key_bytes + tile.xblock * tile.rblock * pair_bytes
    return tile.xblock * query_bytes + tile.stages * turn
