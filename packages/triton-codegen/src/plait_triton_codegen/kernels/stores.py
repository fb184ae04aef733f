"""Plain stores, at each point of their domain."""

from __future__ import annotations

from plait_scheduler import Kernel, Store
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
