"""Positions among values: what a comparison or a coordinate says of loop variables."""

from __future__ import annotations

from plait_ir_lowering import Const, DType, IndexExpr, IndexValue, Value, as_index


def position(value: Value) -> IndexExpr | None:
    """A position or a whole number as an index expression; None for anything else."""
    if isinstance(value, IndexValue):
        return value.expr
    if isinstance(value, Const) and value.dtype is DType.i64:
        return as_index(int(value.value))
    return None
