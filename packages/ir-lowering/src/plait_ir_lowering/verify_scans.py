"""Checks of how scans combine, of graphs and of programs."""

from __future__ import annotations

from collections.abc import Sequence

from plait_ir_lowering.ir.values import Const, Local, Op, Value, carried, components, post_order


def scan_problem(value: Value, combine: Value) -> str | None:
    """What is wrong with how a scan of `value` combines, or None."""
    dtypes = [part.dtype for part in components(value)]
    if [part.dtype for part in components(combine)] != dtypes:
        return "the combination has other components than what it combines"
    return foreign_problem(combine, (*carried("a", dtypes), *carried("b", dtypes)))


def foreign_problem(root: Value, known: Sequence[Local]) -> str | None:
    """What a value computes with besides `known` locals and constants."""
    for part in post_order(components(root)):
        if part not in known and not isinstance(part, Op | Const):
            return f"a scan combines {part}, which is not part of what it carries"
    return None
