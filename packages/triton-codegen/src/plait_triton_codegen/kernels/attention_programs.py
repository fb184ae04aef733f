"""Which batch and which rows each program of a kernel over blocks of pairs has."""

from __future__ import annotations

from collections.abc import Sequence

from plait_ir_lowering import IndexExpr, Layout, TensorRef, as_index, product
from plait_scheduler import Attend
from plait_triton_codegen.kernels.attention_keys import sides_of_keys
from plait_triton_codegen.kernels.attention_pairs import PairWriter, divides

_CACHED_BYTES = 1 << 24
"""What passes by all blocks of rows, as far as the second cache of a GPU holds it beside all
else."""


def program_points(pairs: PairWriter) -> list[str]:
    """Lines that tell a program's batch, and its rows; the prologue names the batch's own
    variables."""
    lines = _rows(pairs)
    for var, place in zip(pairs.kernel.outer[:-1], _batches(pairs), strict=True):
        pairs.writer.prologue.append(f"{var.name} = {pairs.index(place)}")
    return lines


def _batches(pairs: PairWriter) -> list[IndexExpr]:
    """The variables of a batch, of its number."""
    outer = pairs.kernel.outer[:-1]
    whole = Layout.of([var.extent for var in outer])
    found = []
    for place, stride in enumerate(whole.stride):
        expr = pairs.batch.expr // stride
        found.append(expr % outer[place].extent if place else expr)
    return found


def _rows(pairs: PairWriter) -> list[str]:
    names, extent = pairs.names, pairs.index(pairs.row.extent)
    wide = ".to(tl.int64)" if pairs.writer.flat.wide else ""
    program = f"tl.program_id(0){wide}"
    blocks, head = names["blocks"], [f"{names['blocks']} = tl.cdiv({extent}, XBLOCK)"]
    if pairs.row.extent.is_constant:
        blocks, head = str(-(-pairs.row.extent.as_int() // pairs.chosen.xblock)), []
    if _is_heavier_below(pairs) and _fits_in_cache(pairs):
        batches = pairs.index(pairs.batch.extent)
        place = f"device.heavy_and_light({program}, {blocks} * {batches})"
        lines = [
            f"{names['place']} = {place}",
            f"{names['z']} = {names['place']} % {batches}",
            f"{names['first']} = ({blocks} - 1 - {names['place']} // {batches}) * XBLOCK",
        ]
    elif pairs.group is not None and _is_heavier_above(pairs):
        # The heads of a group make programs long: the last to begin should be short ones.
        batches = pairs.index(pairs.batch.extent)
        lines = [
            f"{names['z']} = {program} % {batches}",
            f"{names['first']} = ({program} // {batches}) * XBLOCK",
        ]
    else:
        block = f"{program} % {blocks}"
        if _is_heavier_below(pairs):
            block = f"{blocks} - 1 - {block}"
        lines = [
            f"{names['z']} = {program} // {blocks}",
            f"{names['first']} = ({block}) * XBLOCK",
        ]
    lines = [*head, *lines]
    lines.append(f"{pairs.row.name} = {names['first']} + tl.arange(0, XBLOCK)[:, None]{wide}")
    if not divides(pairs.chosen.xblock, pairs.row.extent):
        pairs.writer.masks["x"] = names["xmask"]
        lines.append(f"{names['xmask']} = {pairs.row.name} < {extent}")
    return lines


def _is_heavier_below(pairs: PairWriter) -> bool:
    """Whether later rows see more keys: what takes longest begins first."""
    seen = sides_of_keys(pairs)
    return seen.low is None and seen.high is not None


def _is_heavier_above(pairs: PairWriter) -> bool:
    """Whether earlier rows see more keys."""
    seen = sides_of_keys(pairs)
    return seen.low is not None and seen.high is None


def _fits_in_cache(pairs: PairWriter) -> bool:
    """Whether what all blocks of rows read stays in the cache for all batches, so that it does
    not matter which batches run side by side."""
    total = 0
    for ref in _passing(pairs):
        layout = pairs.layout(ref)
        sizes = zip(layout.size, layout.stride, strict=True)
        held = product([size for size, stride in sizes if stride is not as_index(0)])
        if not held.is_constant:
            return False
        total += held.as_int() * pairs.kind(ref).itemsize
    return total <= _CACHED_BYTES


def _passing(pairs: PairWriter) -> Sequence[TensorRef]:
    """The tensors that each block of rows reads as a whole."""
    statement = pairs.statement
    if isinstance(statement, Attend):
        return statement.keys, statement.values
    return [right for _, right in statement.factors]
