"""Which neighbours draw the four words of one counter, which is then computed once for them."""

from __future__ import annotations

from plait_ir_lowering import (
    IndexExpr,
    IndexValue,
    Op,
    Value,
    Var,
    atoms,
    rewrite,
    substitute,
)
from plait_triton_codegen.kernels.operations import Expression

PHILOX_IN_FOURS = Expression("device.philox_in_fours({0}, {1}, {2}, {3})")
_WORDS = 4


def in_fours(draw: Op, var: Var) -> bool:
    """Whether points `4 * n` to `4 * n + 3` along a variable draw words 0 to 3 of one counter."""
    four, word = Var("four", var.extent // _WORDS + 1), Var("word", _WORDS)
    place = four.expr * _WORDS + word.expr
    *shared, lane = draw.args
    if not isinstance(lane, IndexValue) or substitute(lane.expr, {var: place}) != word.expr:
        return False
    found: list[IndexExpr] = []

    def index(expr: IndexExpr) -> IndexExpr:
        found.append(substitute(expr, {var: place}))
        return expr

    for value in shared:
        rewrite(value, _same, index)
    return not any(word in atoms(expr) for expr in found)


def _same(_: Value) -> Value | None:
    return None
