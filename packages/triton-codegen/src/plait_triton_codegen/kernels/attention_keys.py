"""Loops over the blocks of keys that a block of rows sees.

Blocks that no row sees are left out; for those that all rows see, masks are not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from plait_ir_lowering import IndexExpr, Var
from plait_scheduler import key_limits, may_fail
from plait_triton_codegen.kernels.attention_limits import (
    EVERY,
    KeyRange,
    LimitWriter,
    SeenKeys,
    all_of,
)
from plait_triton_codegen.kernels.attention_pairs import PairWriter, divides


def key_loops(pairs: PairWriter) -> Iterator[tuple[list[str], bool]]:
    """The heads of loops over blocks of keys, and whether these are computed with the mask."""
    extent = _end(pairs)
    whole = divides(pairs.chosen.rblock, pairs.axis.extent)
    if may_fail(pairs.value):
        yield _for(pairs, "0", extent), bool(pairs.masks) or not whole
        return
    if not pairs.masks and whole:
        yield _for(pairs, "0", extent), False
        return
    seen, is_known = _seen(pairs)
    yield from _ranges(pairs, seen, is_known, extent)


def _end(pairs: PairWriter) -> str:
    """The number of keys, hidden from the compiler where it would make straight code of loops
    that run once: the assembler of CUDA 12.8, which Triton 3.6 has, then takes blocks in shared
    memory that are factors of two products for others, and reads anywhere."""
    keys = pairs.axis.extent
    run_once = keys.is_constant and keys.as_int() < 2 * pairs.chosen.rblock
    return pairs.index(keys) + (" * tl.num_programs(2)" if run_once else "")


def _ranges(
    pairs: PairWriter, seen: SeenKeys, is_known: bool, extent: str
) -> Iterator[tuple[list[str], bool]]:
    """Blocks that all rows see, if there may be such, then those on both sides of them."""
    names = pairs.names
    low, high, begin, end = (names[n] for n in ("low", "high", "begin", "end"))
    starts_at_0 = seen.some.low is None
    if not starts_at_0:
        pairs.add(f"{low} = tl.maximum({seen.some.low}, 0) // RBLOCK * RBLOCK")
    low = "0" if starts_at_0 else low
    limit = extent if seen.some.high is None else f"tl.minimum({seen.some.high}, {extent})"
    pairs.add(f"{high} = {limit}")
    if not is_known:
        yield _for(pairs, low, high), True
        return
    top = extent if seen.all.high is None else f"tl.minimum({seen.all.high}, {extent})"
    first = seen.all.low
    if first is not None:
        pairs.add(f"{begin} = tl.cdiv(tl.maximum({first}, 0), RBLOCK) * RBLOCK")
    begin = low if first is None else begin
    pairs.add(f"{end} = tl.maximum(tl.maximum({top}, 0) // RBLOCK * RBLOCK, {begin})")
    yield _for(pairs, begin, end), False
    if first is None:
        yield _for(pairs, end, high), True
        return
    before, turn, start = (names[n] for n in ("before", "turn", "start"))
    pairs.add(f"{before} = tl.cdiv(tl.maximum(tl.minimum({begin}, {high}) - {low}, 0), RBLOCK)")
    after = f"tl.cdiv(tl.maximum({high} - {end}, 0), RBLOCK)"
    yield (
        [
            f"for {turn} in tl.range(0, {before} + {after}{_stages(pairs)}):",
            f"    {start} = tl.where({turn} < {before}, "
            f"{low} + {turn} * RBLOCK, {end} + ({turn} - {before}) * RBLOCK)",
        ],
        True,
    )


def _seen(pairs: PairWriter) -> tuple[SeenKeys, bool]:
    """The keys that the program's rows see, and whether all masks say that."""
    names, extent = pairs.names, pairs.index(pairs.row.extent)
    if pairs.spans:
        return _spans(pairs), True
    limits = [key_limits(mask, pairs.row, pairs.axis) for mask in pairs.masks]
    known = [limit for limit in limits if limit is not None]
    if known:
        last = f"{names['first']} + XBLOCK"
        if "x" in pairs.writer.masks:
            last = f"tl.minimum({last}, {extent})"
        pairs.add(f"{names['last']} = {last} - 1")
    writer = _limits(pairs, pairs.index)
    seen = all_of([writer.seen(limit) for limit in known]) if known else EVERY
    return seen, len(known) == len(limits)


def _spans(pairs: PairWriter) -> SeenKeys:
    """The keys that data leaves to the program's rows, of the spans of each of them."""
    writer, names = pairs.writer, pairs.names
    low, high, whole = (names[n] for n in ("key", "last_key", "whole"))
    for load in pairs.spans:
        writer.uses[load] = writer.uses.get(load, 0) + 1  # a load that is used has a name
    first, last, count = (writer.write(load) for load in pairs.spans)
    pairs.flush()
    extent = pairs.index(pairs.axis.extent)
    is_whole = f"{count.grouped()} == {last.grouped()} - {first.grouped()} + 1"
    if not first.axes:
        pairs.add(f"{low} = {first.text}", f"{high} = {last.text} + 1")
        pairs.add(f"{whole} = tl.where({is_whole}, {high}, 0)")
        return SeenKeys(KeyRange(low, high), KeyRange(low, whole))
    mask = writer.masks.get("x")
    kept = {
        name: text if mask is None else f"tl.where({mask}, {text}, {other})"
        for name, text, other in (
            ("least", first.text, extent),
            ("most", first.text, "0"),
            ("end", last.text, "-1"),
            ("start", last.text, extent),
        )
    }
    every = f"({is_whole}).to(tl.int32)"
    every = every if mask is None else f"tl.where({mask}, {every}, 1)"
    begin = names["whole_from"]
    pairs.add(
        f"{low} = tl.min({kept['least']})",
        f"{high} = tl.max({kept['end']}) + 1",
        f"{begin} = tl.max({kept['most']})",
        f"{whole} = tl.where(tl.min({every}) != 0, tl.min({kept['start']}) + 1, 0)",
    )
    return SeenKeys(KeyRange(low, high), KeyRange(begin, whole))


def _for(pairs: PairWriter, low: str, high: str) -> list[str]:
    return [f"for {pairs.names['start']} in tl.range({low}, {high}, RBLOCK{_stages(pairs)}):"]


def _stages(pairs: PairWriter) -> str:
    stages = pairs.chosen.stages
    return f", num_stages={stages}" if stages else ""


def sides_of_keys(pairs: PairWriter) -> KeyRange:
    """Which sides of the keys that rows see the masks' forms limit."""
    limits = [key_limits(mask, pairs.row, pairs.axis) for mask in pairs.masks]
    known = [limit for limit in limits if limit is not None]
    writer = _limits(pairs, str)
    return all_of([writer.seen(limit) for limit in known]).some if known else EVERY.some


def _limits(pairs: PairWriter, index: Callable[[IndexExpr], str]) -> LimitWriter:
    first, last = (Var(pairs.names[end], pairs.row.extent) for end in ("first", "last"))
    return LimitWriter(pairs.row, first, last, index)
