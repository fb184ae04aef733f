"""Sizes that are known when the program runs, as text: `s0`, `s0 >= 2`, `s0 in 2..10`."""

from __future__ import annotations

from plait_ir_lowering.ir.index import Sym


def print_size(size: Sym) -> str:
    """A size with what is known of it."""
    if size.upper is not None:
        return f"{size.name} in {size.lower}..{size.upper}"
    return f"{size.name} >= {size.lower}" if size.lower else size.name


def parse_size(text: str) -> Sym:
    """The size of a text of `print_size`."""
    name, _, span = text.partition(" in ")
    if span:
        lower, _, upper = span.partition("..")
        return Sym(name, int(lower), int(upper))
    name, _, lower = text.partition(" >= ")
    return Sym(name, int(lower or 0))
