"""Stores, at each point of their domain: plain ones, and those that combine."""

from __future__ import annotations

from plait_scheduler import Kernel, Store
from plait_triton_codegen.kernels.histograms import counting_lines, counting_of
from plait_triton_codegen.kernels.scatters import combined_where, combining_line, computed_axes
from plait_triton_codegen.kernels.values import Term, ValueWriter


def store(writer: ValueWriter, kernel: Kernel, statement: Store, domain: frozenset[str]) -> None:
    """The line that writes a value, behind those that it needs; `domain` are the axes of points."""
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
    writer.lines.append(f"tl.store({pointer}, {term.text}{guard})")


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
