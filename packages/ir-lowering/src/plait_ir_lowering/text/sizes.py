"""Sizes that are known when the program runs, as text: `s0`, `s0 >= 2`, `s0 in 2..10`, and with
what they are multiples of `s0 >= 2 step 8`."""

from __future__ import annotations

from plait_ir_lowering.ir.index import Sym


def print_size(size: Sym) -> str:
    """A size with what is known of it."""
    step = f" step {size.step}" if size.step > 1 else ""
    if size.upper is not None:
        return f"{size.name} in {size.lower}..{size.upper}{step}"
    return f"{size.name} >= {size.lower}{step}" if size.lower else f"{size.name}{step}"


def parse_size(text: str) -> Sym:
    """The size of a text of `print_size`."""
    text, _, step = text.partition(" step ")
    name, _, span = text.partition(" in ")
    if span:
        lower, _, upper = span.partition("..")
        return Sym(name, int(lower), int(upper), int(step or 1))
    name, _, lower = text.partition(" >= ")
    return Sym(name, int(lower or 0), None, int(step or 1))
