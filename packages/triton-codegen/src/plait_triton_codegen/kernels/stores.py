"""Plain stores, at each point of their domain."""

from __future__ import annotations

from plait_scheduler import Kernel, Store
from plait_triton_codegen.kernels.values import ValueWriter


def store(writer: ValueWriter, kernel: Kernel, statement: Store, domain: frozenset[str]) -> None:
    """The line that writes a value, behind those that it needs; `domain` are the axes of points."""
    term = writer.write(statement.value)
    param = next(p for p in kernel.params if p.name == statement.param)
    offset = writer.index(param.layout.linear(statement.plain_index))
    mask = writer.mask(domain)
    needed = domain & (term.axes | (mask.axes if mask else frozenset()))
    whole = bool(needed - offset.axes) or not offset.axes
    pointer = writer.pointer(param.name, offset, domain if whole else frozenset())
    guard = f", {mask.text}" if mask else ""
    writer.lines.append(f"tl.store({pointer}, {term.text}{guard})")
