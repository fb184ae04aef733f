"""Stores, at each point of their domain: plain ones, and those that combine."""

from __future__ import annotations

from plait_scheduler import Access, Kernel, Store
from plait_triton_codegen.kernels.histograms import counting_lines, counting_of
from plait_triton_codegen.kernels.scatters import combined_where, combining_line, computed_axes
from plait_triton_codegen.kernels.tiles import THREADS_PER_WARP, Tile
from plait_triton_codegen.kernels.values import Term, ValueWriter

TOGETHER = "tl.debug_barrier()"
"""Where threads of a program meet: what they have read and written before is over."""


def store(
    writer: ValueWriter,
    kernel: Kernel,
    statement: Store,
    domain: frozenset[str],
    tile: Tile,
) -> None:
    """The lines that write a value, behind those that it needs; `domain` are the axes of points."""
    term = writer.write(statement.value)
    param = next(p for p in kernel.params if p.name == statement.param)
    offset = writer.index(param.layout.linear(statement.plain_index))
    mask = writer.mask(domain)
    if statement.first is not None:
        assert writer.flat.r is not None, "the first points of a row are inner ones"
        first = Term(f"{writer.flat.r.name} < {statement.first}", frozenset("r"))
        mask = writer.mask(domain - first.axes, first)
    needed = domain & (term.axes | (mask.axes if mask else frozenset()))
    whole = bool(needed - offset.axes) or not offset.axes
    pointer = writer.pointer(param.name, offset, domain if whole else frozenset())
    guard = f", {mask.text}" if mask else ""
    if param.access is Access.READ_WRITE and _is_read_by_several(domain, tile):
        writer.lines.append(TOGETHER)
    writer.lines.append(f"tl.store({pointer}, {term.text}{guard})")


def _is_read_by_several(domain: frozenset[str], tile: Tile) -> bool:
    """Whether threads of several warps may read an element of these axes. Triton loads what has no
    more elements than a program has threads again for each use, however these are spread: none is
    written before all have read it."""
    block = (tile.xblock if "x" in domain else 1) * (tile.rblock if "r" in domain else 1)
    return tile.num_warps > 1 and block <= tile.num_warps * THREADS_PER_WARP


def combine(writer: ValueWriter, kernel: Kernel, store: Store, domain: frozenset[str]) -> None:
    """The lines that combine a value with what is at its place, behind those that it needs."""
    counting = counting_of(writer.flat, store)
    if counting is not None:
        writer.lines += counting_lines(writer, counting, kernel)
        return
    value, condition = combined_where(store)
    term = writer.write(value)
    guard = None if condition is None else writer.write(condition)
    param = next(p for p in kernel.params if p.name == store.param)
    parts = [writer.index(param.layout.linear(store.plain_index))]
    for axis, at in computed_axes(store):
        parts.append(writer.strided(writer.locals[at.name], param.layout.stride[axis]))
    pointer = writer.pointer(param.name, writer.total(parts), domain)
    mask = writer.mask(domain, guard)
    text = None if mask is None else mask.text
    writer.lines.append(combining_line(store, pointer, term.text, text))
