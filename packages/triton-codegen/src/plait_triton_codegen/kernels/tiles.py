"""Which block of points one program computes, and with how many warps.

The numbers aim at kernels that wait for memory: accesses of 16 bytes a thread, a few of
them in flight, enough programs to fill a GPU of about 132 multiprocessors, and rows held
in registers while they fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

from plait_ir_lowering import IndexExpr, Load, Local, Sym, post_order
from plait_scheduler import Accumulate, Domain, Let, Reduce, Sort
from plait_triton_codegen.errors import UnsupportedKernelError
from plait_triton_codegen.kernels.chips import Chip
from plait_triton_codegen.kernels.histograms import is_histogram
from plait_triton_codegen.kernels.loops import loops
from plait_triton_codegen.kernels.space import Access, FlatKernel
from plait_triton_codegen.options import TritonOptions

FULL_GRID = 264
"""Programs that keep a large GPU busy: two for each multiprocessor."""
MOST_PROGRAMS = 2**31 - 1
"""Programs that one launch takes."""
THREADS_PER_WARP = 32
VECTOR_BYTES = 16
MAX_WARPS = 16
ROW_REGISTERS = 64
"""Registers of a thread that may hold values of its part of a row."""
LOOPED_ELEMENTS = 16
"""Elements of a thread in one turn of a loop over a row."""
LONG_ROW = 4096
MANY_STREAMS = 4
"""Tensors of whole rows that a kernel reads and writes, from which on a thread has one access of 16
bytes to each on long rows: add and RMSNorm, 16384 by 4096 in bfloat16, took an H200 133.0 us so,
134.0 with four of them."""
ONLINE_ROW = 16384
"""Longer rows, whole in registers, leave room for no other program on a multiprocessor: a loop that
reads them once, and once more to write, is faster."""
ONLINE_WARPS = 4
SMALL_ONLINE_BLOCK = 2048
"""Of rows that threads read element by element, since they begin anywhere in memory: no blocks of
these are on their way, and all warps of a program meet in each turn, for its maximum. So several
small programs are on a multiprocessor, which do not meet: nine of 4 warps and 56 registers for a
cross-entropy over 50257 columns, where four of 8 warps had room. An H200 took 1.22 times less so in
bfloat16, 1.36 for a logarithm of sums, and 2.76 for a softmax, whose blocks had 8192 elements. Of
length, a softmax takes 1.47 times less over 5000 columns, up to 1.2 times more beyond."""
ONLINE_STAGES = 3
"""Blocks of a row that is read once which are on their way at the same time."""
RESIDENT_ROW = 32768
"""Longer rows do not fit in registers. Programs that take row after row read the next ones while
one is computed and written: 8192 rows of bfloat16 with a float32 result took an H200 417 us so, two
passes 467 and a program for each row 486 at best."""
RESIDENT_PROGRAMS = 3
"""For each multiprocessor, which has room for one at a time: they need not end together."""
RESIDENT_STAGES = 3
"""The row that is computed, and two on their way."""
RESIDENT_WARPS = 16
SCANNED_ROW = 4096
"""Longer rows are scanned block by block."""
SCANNED_BLOCK = 4096
"""For a state of 4 bytes; smaller for larger ones, of which a thread has half as many."""
SORTED_ROW = 4096
"""Longer rows are not sorted in registers."""
SORTED_BYTES = 128
"""Of a thread's keys: the more elements a thread has, the fewer steps of a sort cross threads."""
SORTED_TILE = 1024
"""Keys that the programs of short rows have together."""
SORTED_COLUMNS = 8192
"""Keys of a program that sorts down columns, neighbours of which it reads together."""
COLUMN_BYTES = 128
"""Bytes of one row that a program reads where rows are reduced down their columns."""
COLUMN_TILE = 2048
COLUMN_STAGES = 3
COLUMN_STAGE_BYTES = 1 << 14
"""Blocks of columns of which several inputs are read are on their way while others are added up: on
an H200 GELU's gradient and the bias's, 8192 by 3072 in bfloat16, took 67 us, and so 55."""
STAGED_COLUMNS = (512, 256)
STAGED_BYTES = 1 << 15
"""Bytes of a block of rows that are summed: 16384 by 4096 in bfloat16 took an H200 33 us in blocks
of 512 columns, 34 in those of 256, and 39 in those of `COLUMN_BYTES`."""
STAGED_WARPS = 4
POINTWISE_WARPS = 4
COUNTED_BLOCK = 4096
"""Points that a program counts before it adds to each bin."""
COUNTED_WARPS = 8
_EXCHANGED_BYTES = 1 << 10
"""Shared memory by which the warps of a program exchange what they reduce."""
TRANSPOSE_SIDE = 64
TRANSPOSE_WARPS = 8


@dataclass(frozen=True, slots=True)
class Roles:
    """How two warpgroups multiply, to which other warps bring the factors."""

    function: str
    """Of `device_roles`."""
    shares_blocks: bool
    """Whether each has half of a block's rows, rather than every second block."""
    stored_bytes: int
    """Of a row of the result, how many are stored at a time."""


ROLES = {
    "together": Roles("together", True, 256),
    "in turn": Roles("in_turn", False, 128),
}
"""The roles that warps may have, by name."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A block of `xblock` outer points; of `rblock` inner points at a time, if there are any.

    A persistent tile has no loop: it spans the whole inner domain, or is a tile of a
    pointwise kernel.
    """

    xblock: int
    rblock: int
    num_warps: int
    persistent: bool
    stages: int = 0
    """Turns of a loop whose loads are on their way at the same time; 0 where Triton may choose."""
    kblock: int = 0
    """Terms of a product of matrices that a turn multiplies, where `rblock` are its columns."""
    turns: int = 1
    """Blocks of outer points that a program takes, one after the other."""
    programs: int = 0
    """Of a product of matrices, programs that share its blocks out among them, so that one's loads
    are on their way while another is finished; 0 where each block has one."""
    described: bool = False
    """Whether those factors of a product that are plain matrices are read by descriptors."""
    described_result: bool = False
    """Whether a descriptor writes its result, too, where that is a plain matrix."""
    roles: str = ""
    """Of a product whose warps have roles, which of `ROLES` these are; `num_warps` are those of a
    warpgroup then, of which there are two, beside warps that read."""

    @property
    def constants(self) -> dict[str, int]:
        """The compile-time arguments of a kernel with an inner domain."""
        named = {"XBLOCK": self.xblock, "RBLOCK": self.rblock}
        return {**named, "KBLOCK": self.kblock} if self.kblock else named


def choose_tile(flat: FlatKernel, options: TritonOptions, chip: Chip) -> Tile:
    """The tile for a kernel; see the module's text."""
    tile = _chosen(flat, options, chip)
    while programs_of(flat, tile) > MOST_PROGRAMS:
        tile = replace(tile, xblock=2 * tile.xblock)
    return tile


def programs_of(flat: FlatKernel, tile: Tile) -> int:
    """How many programs carry a kernel out; 0 where only the call knows."""
    xnumel, rnumel = flat.xnumel, flat.rnumel if flat.tiled else 1
    if xnumel is None or rnumel is None:
        return 0
    return -(-xnumel // (tile.xblock * tile.turns)) * (
        -(-rnumel // tile.rblock) if flat.tiled else 1
    )


def _chosen(flat: FlatKernel, options: TritonOptions, chip: Chip) -> Tile:
    if flat.r is None:
        return _pointwise(flat)
    if flat.tiled:
        return Tile(_side(flat.xnumel), _side(flat.rnumel), TRANSPOSE_WARPS, True)
    rnumel = flat.rnumel
    sorts = [s for s in flat.kernel.statements if isinstance(s, Sort)]
    if sorts:
        return _sorted(flat, max(_key_bytes(sort) for sort in sorts))
    if any(isinstance(statement, Accumulate) for statement in flat.kernel.statements):
        return _scanned(flat, rnumel, min(options.max_persistent, SCANNED_ROW))
    if is_column(flat):
        return _staged_columns(flat, chip) or _column(flat)
    online = _online_row(flat, chip)
    if online is not None:
        return online
    if rnumel is not None and rnumel <= options.max_persistent:
        tile = _persistent_row(flat, rnumel)
        if tile is not None:
            return tile
    return _looped_row(flat)


def _pointwise(flat: FlatKernel) -> Tile:
    if is_histogram(flat):
        return Tile(COUNTED_BLOCK, 1, COUNTED_WARPS, False)
    widest = max((p.dtype.itemsize for p in flat.kernel.params), default=4)
    reads = sum(not access.is_store for access in flat.accesses())
    per_thread = min(max(2 * VECTOR_BYTES // widest, 4), 16)
    if reads > 6:
        per_thread //= 2
    numel = flat.xnumel
    threads = POINTWISE_WARPS * THREADS_PER_WARP
    if numel is None:
        return Tile(threads * per_thread, 1, POINTWISE_WARPS, False)
    while per_thread > 1 and numel < FULL_GRID * threads * per_thread:
        per_thread //= 2
    xblock = min(threads * per_thread, power_of_two(numel))
    return Tile(xblock, 1, warps_of(xblock, per_thread, POINTWISE_WARPS), False)


def _side(numel: int | None) -> int:
    return TRANSPOSE_SIDE if numel is None else min(TRANSPOSE_SIDE, power_of_two(numel))


def _persistent_row(flat: FlatKernel, rnumel: int) -> Tile | None:
    rblock = power_of_two(rnumel)
    live = live_words(flat)
    per_thread = max(power_of_two_below(int(ROW_REGISTERS / live)), 1)
    if rblock > per_thread * THREADS_PER_WARP * MAX_WARPS:
        return None
    usual = min(per_thread, 32 if rblock >= LONG_ROW else 16)
    if rblock >= LONG_ROW and len(_streams(flat)) >= MANY_STREAMS:
        usual = min(usual, VECTOR_BYTES // max(_streams(flat)))
    xblock = 1
    rows = flat.xnumel
    while (
        rblock * xblock < usual * THREADS_PER_WARP * 2
        and rblock * xblock * 2 <= 4096
        and (rows is None or rows >= FULL_GRID * xblock * 2)
    ):
        xblock *= 2
    return Tile(xblock, rblock, warps_of(xblock * rblock, usual, MAX_WARPS), True)


def _streams(flat: FlatKernel) -> list[int]:
    """The bytes of an element of each tensor that rows of their own are read of or written to."""
    found = {
        access.param.name: access.param.dtype.itemsize
        for access in flat.accesses()
        if access.domain is Domain.INNER and flat.step(access, flat.x) != 0
    }
    return [*found.values()]


def _scanned(flat: FlatKernel, rnumel: int | None, longest: int) -> Tile:
    """Rows that are scanned are whole in one block up to `longest` elements."""
    whole = rnumel is not None and rnumel <= longest
    if is_column(flat):
        tile = _column(flat)
        if rnumel is None or not whole or tile.rblock >= power_of_two(rnumel):
            return replace(tile, persistent=tile.persistent and whole)
        rblock = power_of_two(rnumel)
        xblock = max(min(COLUMN_TILE // rblock, tile.xblock), 1)
        return Tile(xblock, rblock, warps_of(xblock * rblock, LOOPED_ELEMENTS, MAX_WARPS), True)
    row = _persistent_row(flat, rnumel) if rnumel is not None and whole else None
    if row is not None:
        return row
    larger = max(power_of_two(_state_bytes(flat)) // 4, 1)
    rblock, per_thread = SCANNED_BLOCK // larger, LOOPED_ELEMENTS // min(larger, 2)
    return Tile(1, rblock, warps_of(rblock, per_thread, MAX_WARPS), False)


def _sorted(flat: FlatKernel, key_bytes: int) -> Tile:
    """Rows that are sorted are whole in one block. Raises UnsupportedKernelError for long ones."""
    rnumel, rows = flat.rnumel, flat.xnumel
    if rnumel is None or rnumel > SORTED_ROW:
        raise UnsupportedKernelError("rows too long for registers are not sorted")
    rblock = power_of_two(rnumel)
    xblock = max(SORTED_TILE // rblock, 1)
    if rows is not None:
        while xblock > 1 and rows < FULL_GRID * xblock:
            xblock //= 2
    if is_column(flat):
        neighbours = min(COLUMN_BYTES // 4, power_of_two(rows or SORTED_COLUMNS))
        xblock = max(xblock, min(neighbours, SORTED_COLUMNS // rblock))
    return Tile(
        xblock, rblock, warps_of(xblock * rblock, SORTED_BYTES // key_bytes, MAX_WARPS), True
    )


def _key_bytes(sort: Sort) -> int:
    return sum(word.dtype.itemsize for word in sort.locals)


def _state_bytes(flat: FlatKernel) -> int:
    """Bytes that the scans of a kernel carry from point to point."""
    scans = (s for s in flat.kernel.statements if isinstance(s, Accumulate))
    return sum(local.dtype.itemsize for scan in scans for local in scan.locals)


def _online_row(flat: FlatKernel, chip: Chip) -> Tile | None:
    """For long rows whose maximum and exponentials take one pass, and then at most one more: with
    whole rows, if a multiprocessor has room for two on their way and one."""
    if flat.rnumel is not None and flat.rnumel <= ONLINE_ROW:
        return None
    try:
        passes = [loop for loop in loops(flat.kernel) if loop.domain is Domain.INNER]
    except UnsupportedKernelError:
        return None
    if len(passes) > 2 or not any(loop.largest for loop in passes):
        return None
    if _begins_anywhere(flat):
        return Tile(1, SMALL_ONLINE_BLOCK, ONLINE_WARPS, False)
    if flat.rnumel is None or live_words(flat) > 1:
        return None
    turned = _resident_row(flat, chip) if len(passes) == 2 else None
    return turned or Tile(1, 4096 * len(passes), ONLINE_WARPS, False)


def _resident_row(flat: FlatKernel, chip: Chip) -> Tile | None:
    rows, rnumel = flat.xnumel, flat.rnumel
    if rows is None or rnumel is None or rnumel > RESIDENT_ROW:
        return None
    inside = [access for access in flat.accesses() if access.domain is Domain.INNER]
    read = sum(access.param.dtype.itemsize for access in inside if not access.is_store)
    rblock, turns = power_of_two(rnumel), -(-rows // (RESIDENT_PROGRAMS * chip.processors))
    on_their_way = (RESIDENT_STAGES - 1) * read * rblock
    if turns == 1 or on_their_way + _EXCHANGED_BYTES > chip.shared_bytes:
        return None
    return Tile(1, rblock, RESIDENT_WARPS, True, RESIDENT_STAGES, turns=turns)


def _begins_anywhere(flat: FlatKernel) -> bool:
    """Whether rows that are read do not all begin at multiples of what a thread reads at once."""
    return any(
        known_step(access.offset - flat.r.expr) * access.param.dtype.itemsize % VECTOR_BYTES
        for access in flat.accesses()
        if flat.r is not None and _is_read_inside(access) and flat.step(access, flat.r) == 1
    )


def known_step(expr: IndexExpr) -> int:
    """What an expression is known to be a multiple of; 0 for 0."""
    found = 0
    for monomial, coefficient in expr.terms:
        steps = (atom.step for atom in monomial if isinstance(atom, Sym))
        found = gcd(found, coefficient * prod(steps))
    return found


def _looped_row(flat: FlatKernel) -> Tile:
    rnumel = flat.rnumel
    longest = 4096 if rnumel is None else min(power_of_two(rnumel), 4096)
    live = live_words(flat)
    per_thread = LOOPED_ELEMENTS if live <= 2 else LOOPED_ELEMENTS // 2
    return Tile(1, longest, warps_of(longest, per_thread, MAX_WARPS), False)


def _column(flat: FlatKernel) -> Tile:
    itemsize = max(
        (access.param.dtype.itemsize for access in flat.accesses() if not access.is_store),
        default=4,
    )
    xblock = max(COLUMN_BYTES // itemsize, 16)
    columns, rnumel = flat.xnumel, flat.rnumel
    if columns is not None:
        while xblock > 16 and columns < FULL_GRID * xblock:
            xblock //= 2
        xblock = min(xblock, power_of_two(columns))
    read = [a.param.dtype.itemsize for a in flat.accesses() if _is_read_inside(a)]
    stages, tile = 0, COLUMN_TILE
    if len(read) > 1:
        stages, tile = COLUMN_STAGES, power_of_two_below(COLUMN_STAGE_BYTES // sum(read))
    rblock = max(tile // xblock, 1)
    if rnumel is not None:
        rblock = min(rblock, power_of_two(rnumel))
    warps = warps_of(xblock * min(rblock, COLUMN_TILE // xblock), LOOPED_ELEMENTS, 8)
    persistent = rnumel is not None and rblock >= rnumel
    return Tile(xblock, rblock, warps, persistent, 0 if persistent else stages)


def _staged_columns(flat: FlatKernel, chip: Chip) -> Tile | None:
    """For long columns that are read once: wide rows, of which the next are on their way, by one
    program for each multiprocessor, or a few."""
    read = [access.param.dtype.itemsize for access in flat.accesses() if _is_read_inside(access)]
    columns, rnumel = flat.xnumel, flat.rnumel
    if len(read) != 1 or columns is None or rnumel is None:
        return None
    for xblock in STAGED_COLUMNS:
        rblock = STAGED_BYTES // (read[0] * xblock)
        programs = columns // xblock
        if columns % xblock == 0 and rnumel >= 4 * rblock and 10 * programs >= 9 * chip.processors:
            return Tile(xblock, rblock, STAGED_WARPS, False, COLUMN_STAGES)
    return None


def _is_read_inside(access: Access) -> bool:
    return access.domain is Domain.INNER and not access.is_store


def is_column(flat: FlatKernel) -> bool:
    """Whether neighbours in memory are outer points, weighed by bytes."""
    along_x = along_r = 0
    for access in flat.accesses():
        if access.domain is Domain.INNER:
            size = access.param.dtype.itemsize
            along_x += size * _is_unit(flat.step(access, flat.x))
            along_r += size * _is_unit(flat.step(access, flat.r))
    return along_x > along_r


def _is_unit(step: int) -> bool:
    return abs(step) == 1


def live_words(flat: FlatKernel) -> float:
    """Registers for each inner point of what is named before a reduction and used after it."""
    statements = flat.kernel.statements
    last_use: dict[str, int] = {}
    for position, statement in enumerate(statements):
        for value in post_order([statement.value]):
            if isinstance(value, Local):
                last_use[value.name] = position
    most = 1.0
    for position, statement in enumerate(statements):
        if not isinstance(statement, Reduce):
            continue
        held = [
            let.value.dtype.itemsize / 4
            for let in statements[:position]
            if isinstance(let, Let)
            and let.domain is Domain.INNER
            and last_use.get(let.name, 0) > position
        ]
        most = max(most, sum(held))
    return max(most, _shared_loads(flat) * 0.5)


def _shared_loads(flat: FlatKernel) -> int:
    """Loads along whole rows, which are all in flight at once."""
    found: set[Load] = set()
    for statement in flat.kernel.statements:
        found.update(v for v in post_order([statement.value]) if isinstance(v, Load))
    return len(found)


def warps_of(elements: int, per_thread: int, most: int) -> int:
    """Warps for so many elements, of which each thread takes so many."""
    return min(max(power_of_two(elements // (per_thread * THREADS_PER_WARP)), 1), most)


def power_of_two(number: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(number - 1, 0).bit_length()


def power_of_two_below(number: int) -> int:
    """The largest power of two that is not more; 0 for 0."""
    return 1 << (number.bit_length() - 1) if number else 0


__all__ = ["Access", "Tile", "choose_tile", "live_words", "power_of_two", "warps_of"]
