"""Checks of how scans combine and what sorts order, of graphs and of programs."""

from __future__ import annotations

from collections.abc import Sequence

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import Const, Local, Op, Value, carried, components, post_order


def scan_problem(value: Value, combine: Value) -> str | None:
    """What is wrong with how a scan of `value` combines, or None."""
    dtypes = [part.dtype for part in components(value)]
    if [part.dtype for part in components(combine)] != dtypes:
        return "the combination has other components than what it combines"
    return foreign_problem(combine, (*carried("a", dtypes), *carried("b", dtypes)))


def sort_problem(value: Value) -> str | None:
    """What is wrong with sorting `value`, or None."""
    dtypes = [word.dtype for word in components(value)]
    if len(dtypes) > 2:
        return f"what is sorted has {len(dtypes)} words, not one or two"
    wrong = next((dtype for dtype in dtypes if dtype not in (DType.i32, DType.i64)), None)
    return None if wrong is None else f"what is sorted is {wrong}, not i32 or i64"


def foreign_problem(root: Value, known: Sequence[Local]) -> str | None:
    """What a value of a scan or a sort computes with besides `known` locals and constants."""
    for part in post_order(components(root)):
        if part not in known and not isinstance(part, Op | Const):
            return f"{part} is not part of what a scan carries, or a sort orders"
    return None
