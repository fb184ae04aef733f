"""Statements of kernels with other values in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from plait_ir_lowering import IndexExpr, Value
from plait_scheduler import Statement, Store


def with_value(
    statement: Statement, value: Value, index: Callable[[IndexExpr], IndexExpr]
) -> Statement:
    """A statement of another value, which it stores, if it does, at places that `index` gives."""
    if isinstance(statement, Store):
        places = tuple(index(at) if isinstance(at, IndexExpr) else at for at in statement.index)
        return replace(statement, value=value, index=places)
    return replace(statement, value=value)
