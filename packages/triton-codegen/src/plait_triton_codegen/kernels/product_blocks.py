"""Which blocks of rows, columns and terms a program of a product of matrices takes.

Sums stay in registers; blocks of both factors pass through shared memory, the next ones on their
way while one is multiplied. The largest block that leaves work for all processors reads least.

Where there are more blocks than programs run at once, programs may also share the blocks out among
them: the first factors of the next block are then on their way while the sums of one are finished
and stored. By rule each block has a program, but for results of odd rows (`descriptors.py`); timing
may find the others faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from plait_ir_lowering import DType, IndexExpr, Var, product
from plait_scheduler import Store
from plait_triton_codegen.kernels.chips import Chip
from plait_triton_codegen.kernels.literals import BYTES
from plait_triton_codegen.kernels.products import Product
from plait_triton_codegen.kernels.tiles import FULL_GRID, ROLES, Tile, power_of_two

LEAST_BLOCK = 16
"""What tensor cores multiply has at least as many rows and columns."""
_ENOUGH = 3 * FULL_GRID // 8
"""Programs that are enough: one for each of three quarters of the processors."""
_LARGE = 128 * 128
"""Rows times columns of blocks that are shared out: the sums of small ones are soon finished."""
_WIDE_SIDE = 128
"""Rows and columns of blocks that are shared out by rule: fewer wait for memory."""
_ALONE = 64
"""Rows, columns and terms of a block of a program that computes a small product alone."""
_SMALL_WARPS = 4
"""Two programs of so many warps find room on a processor, even in large blocks."""
_LEAST_BYTES = 32
"""Bytes along the terms of a product that tensor cores take at least."""
_NARROW = (
    Tile(128, 256, 8, False, 3, 64),
    Tile(128, 256, 8, False, 4, 64),
    Tile(256, 128, 8, False, 3, 64),
    Tile(128, 128, 8, False, 3, 64),
    Tile(128, 128, 8, False, 4, 64),
    Tile(128, 128, 4, False, 3, 32),
    Tile(64, 256, 4, False, 3, 32),
    Tile(128, 64, 8, False, 3, 64),
    Tile(64, 128, 4, False, 3, 64),
    Tile(64, 64, 4, False, 4, 64),
    Tile(32, 64, 4, False, 4, 64),
    Tile(16, 128, 4, False, 4, 64),
    Tile(16, 64, 4, False, 4, 128),
    Tile(16, 32, 2, False, 4, 128),
)
"""For factors of 16 bits and integers of 8, from the most work for a program to the least."""
_NARROWEST = tuple(tile for tile in _NARROW if tile.rblock < 256)
"""For floats of 8 bits, whose sums are in registers twice: as f32 and as tensor cores add them."""
_SCALED = tuple(tile for tile in _NARROWEST if tile.xblock * tile.rblock <= _LARGE)
"""For those with scales of blocks of terms: what these give is in registers beside the sums."""
_TF32 = (
    Tile(128, 128, 8, False, 3, 32),
    Tile(64, 128, 4, False, 3, 32),
    Tile(64, 64, 4, False, 3, 32),
    Tile(32, 64, 4, False, 3, 32),
    Tile(16, 64, 4, False, 4, 64),
)
"""For f32 that is multiplied by its first bits."""
_WIDE = (
    Tile(64, 64, 8, False, 2, 16),
    Tile(32, 64, 8, False, 2, 16),
    Tile(32, 32, 4, False, 2, 16),
    Tile(16, 32, 4, False, 2, 16),
)
"""For f32, whose products no tensor core takes: more would not fit in registers."""

_ROLES = (
    Tile(64, 256, 4, False, 5, 64, roles="in turn"),
    Tile(128, 128, 4, False, 6, 64, roles="in turn"),
    Tile(128, 256, 4, False, 4, 64, roles="together"),
)
"""For large products of f16 and bf16 whose warps have roles: what two warpgroups have registers
for, and as many stages as shared memory has room for beside what is stored."""
_BARRIER_BYTES = 1024
"""More than the barriers of a program, and what lies unused between its blocks, take."""


def product_tile(found: Product, *, tf32: bool, chip: Chip, shared_out: bool = False) -> Tile:
    """The block by rule.

    Args:
        shared_out: whether large blocks are rather shared out among programs, and factors read by
            descriptors.
    """
    fitting = _one_block_each(found, tf32, chip.shared_bytes)
    rule = next((tile for tile in fitting if _blocks(found, tile) >= _ENOUGH), fitting[-1])
    if not shared_out or min(rule.xblock, rule.rblock) < _WIDE_SIDE:
        return rule
    forms = (replace(tile, described=True) for tile in _shared_out(found, (rule,), chip))
    return next(forms, rule)


def product_tiles(
    found: Product,
    *,
    tf32: bool,
    chip: Chip,
    described: bool = False,
    described_result: bool = False,
    roles: bool = False,
) -> tuple[Tile, ...]:
    """The blocks to choose from, each once: no larger than the matrices, and with room for what
    is on its way in a program's shared memory.

    Args:
        described: whether descriptors can read all factors.
        described_result: whether one can write the result.
        roles: whether warps may have roles, of a single product of f16 or bf16 without parts.
    """
    alone = _one_block_each(found, tf32, chip.shared_bytes)
    shared_out = tuple(dict.fromkeys(_shared_out(found, alone, chip)))
    made = (*alone, *shared_out)
    if not described or (found.dtype is DType.f32 and not tf32):
        return made
    if found.term_groups is not None:  # of which each has descriptors of its own
        made = alone
    large = [tile for tile in made if tile.xblock * tile.rblock >= _LARGE]
    read = tuple(dict.fromkeys(replace(tile, described=True) for tile in large))
    # where nothing follows, nothing is gained by threads that need not store
    ahead = [tile for tile in read if tile.programs and described_result]
    stored = (replace(tile, described_result=True) for tile in ahead)
    with_roles = _with_roles(found, chip) if roles and described_result else ()
    return (*alone, *shared_out, *read, *stored, *with_roles)


def _with_roles(found: Product, chip: Chip) -> Iterator[Tile]:
    """Blocks of programs whose warps have roles, no larger than the matrices, where there is one
    for each program at least."""
    sides = [_count(each) for each in (found.rows, found.columns, found.inner)]
    if not all(each.is_constant for each in sides):
        return
    for tile in _ROLES:
        blocks = tile.xblock, tile.rblock, tile.kblock
        is_large = all(e.as_int() >= b for e, b in zip(sides, blocks, strict=True))
        roles = ROLES[tile.roles]
        rows = tile.xblock * (1 if roles.shares_blocks else 2)
        beside = rows * roles.stored_bytes + _BARRIER_BYTES
        fits = _turn_bytes(found, tile) * tile.stages + beside <= chip.shared_bytes
        if is_large and fits and _blocks(found, tile) >= chip.processors:
            facts = replace(tile, programs=chip.processors, described=True)
            yield replace(facts, described_result=True)


def _one_block_each(found: Product, tf32: bool, shared: int) -> tuple[Tile, ...]:
    """The blocks of programs that each take one."""
    return tuple(dict.fromkeys(_fitted(found, tile, shared) for tile in _table(found, tf32)))


def _table(found: Product, tf32: bool) -> tuple[Tile, ...]:
    if found.dtype in BYTES:
        return _SCALED if found.scaled_terms else _NARROWEST
    return _NARROW if found.dtype.itemsize <= 2 else _TF32 if tf32 else _WIDE


def _shared_out(found: Product, alone: Sequence[Tile], chip: Chip) -> Iterator[Tile]:
    """Large blocks that as many programs as run at once share out among them."""
    for tile in alone:
        programs = chip.processors * (1 if tile.num_warps > _SMALL_WARPS else 2)
        room = chip.shared_bytes - _stored_bytes(found, tile)  # beside what is on its way
        if tile.xblock * tile.rblock >= _LARGE and _blocks(found, tile) > programs:
            made = _with_fewer_stages(found, replace(tile, programs=programs), room)
            if _turn_bytes(found, made) * made.stages <= room:
                yield made


def _with_fewer_stages(found: Product, tile: Tile, shared: int) -> Tile:
    while _turn_bytes(found, tile) * tile.stages > shared and tile.stages > 2:
        tile = replace(tile, stages=tile.stages - 1)
    return tile


def _fitted(found: Product, tile: Tile, shared: int) -> Tile:
    """A block cut to the matrices, with fewer stages where that takes less memory than there is."""
    terms = tile.kblock * (2 if found.dtype.itemsize == 1 else 1)
    least = _LEAST_BYTES // found.dtype.itemsize
    sums = len(found.sums)
    made = replace(
        tile,
        xblock=_cut(tile.xblock, _count(found.rows), LEAST_BLOCK),
        rblock=_cut(max(tile.rblock // sums, LEAST_BLOCK), _count(found.columns), LEAST_BLOCK),
        kblock=_cut(terms, _count(found.inner), max(least, LEAST_BLOCK)),
    )
    while made.kblock > least and found.scaled_terms % made.kblock:
        made = replace(made, kblock=made.kblock // 2)
    return _within(found, made, shared)


def _within(found: Product, tile: Tile, shared: int) -> Tile:
    """A tile with fewer stages, and fewer columns, where that takes less memory than there is."""
    while _stored_bytes(found, tile) > shared and tile.rblock > LEAST_BLOCK:
        tile = replace(tile, rblock=tile.rblock // 2)
    tile = _with_fewer_stages(found, tile, shared)
    while _turn_bytes(found, tile) * tile.stages > shared and tile.rblock > LEAST_BLOCK:
        tile = replace(tile, rblock=tile.rblock // 2)
    return tile


def widened(found: Product, tile: Tile, chip: Chip) -> Tile:
    """A tile of a small product that one program computes: as much of it as a program can take,
    with what of it is on its way in shared memory."""
    sides = [_count(each) for each in (found.rows, found.columns, found.inner)]
    xblock, rblock, kblock = (
        max(block, min(power_of_two(size.as_int()), _ALONE)) if size.is_constant else block
        for block, size in zip((tile.xblock, tile.rblock, tile.kblock), sides, strict=True)
    )
    made = replace(
        tile,
        xblock=xblock,
        rblock=rblock,
        kblock=tile.kblock if found.scaled_terms else kblock,
        programs=0,
        described=False,
        described_result=False,
    )
    return _within(found, made, chip.shared_bytes)


def _cut(block: int, extent: IndexExpr, least: int) -> int:
    if not extent.is_constant:
        return block
    return min(block, max(power_of_two(extent.as_int()), least))


def _count(variables: Sequence[Var]) -> IndexExpr:
    return product([var.extent for var in variables])


def _turn_bytes(found: Product, tile: Tile) -> int:
    """What one turn reads of the factors of all sums."""
    lefts = len({each.left for each in found.sums})
    rights = len({each.right for each in found.sums})
    return tile.kblock * (lefts * tile.xblock + rights * tile.rblock) * found.dtype.itemsize


def _stored_bytes(found: Product, tile: Tile) -> int:
    """A block of what is stored, which threads exchange so that each has neighbours."""
    widest = max(each.value.dtype.itemsize for each in found.finish if isinstance(each, Store))
    return tile.xblock * tile.rblock * widest


def _blocks(found: Product, tile: Tile) -> int:
    """How many blocks there are, those of open sizes taken to be many."""
    total = 1
    for extent, block in product_grid(found, tile):
        total *= -(-extent.as_int() // block) if extent.is_constant else FULL_GRID
    return total


def product_grid(found: Product, tile: Tile) -> Iterator[tuple[IndexExpr, int]]:
    """Extents of batches, rows and columns, and how much of each a block has.

    Groups of rows begin with blocks: each may have one more than its rows fill.
    """
    yield _count(found.batches), 1
    groups = 0 if found.groups is None else found.groups.ends.count
    yield _count(found.rows) + groups * tile.xblock, tile.xblock
    yield _count(found.columns), tile.rblock
