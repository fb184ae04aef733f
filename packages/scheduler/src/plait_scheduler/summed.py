"""What kernels sum up, spelled out: what back ends recognize products of matrices by."""

from __future__ import annotations

from collections.abc import Mapping

from plait_ir_lowering import (
    IndexExpr,
    IndexValue,
    Load,
    Local,
    ReductionKind,
    Value,
    atoms,
    post_order,
    rewrite,
)
from plait_scheduler.program import Domain, Kernel, Let, Reduce, Statement, Store


def sums_of(kernel: Kernel) -> tuple[list[Reduce], tuple[Statement, ...]] | None:
    """The sums of a kernel, in terms of what it loads, and the statements that follow.

    None where it does something else along the inner domain, or sums up what depends on a sum.
    """
    named: dict[str, Value] = {}
    reduces: list[Reduce] = []
    finish: list[Statement] = []
    for statement in kernel.statements:
        match statement:
            case Let(name, domain, value):
                named[name] = _spelled_out(value, named)
                if domain is Domain.OUTER:
                    finish.append(statement)
            case Reduce(name, ReductionKind.SUM, value):
                if any(isinstance(each, Store) for each in finish):
                    return None
                reduces.append(Reduce(name, ReductionKind.SUM, _spelled_out(value, named)))
            case Store(_, _, Domain.OUTER, _, None):
                finish.append(statement)
            case _:
                return None
    roots = [each.value for each in reduces]
    if not roots or any(isinstance(value, Local) for value in post_order(roots)):
        return None
    return reduces, tuple(finish)


def _spelled_out(value: Value, named: Mapping[str, Value]) -> Value:
    def leaf(part: Value) -> Value | None:
        return named.get(part.name) if isinstance(part, Local) else None

    return rewrite(value, leaf, lambda expr: expr)


def variables_of(value: Value) -> frozenset[object]:
    """The variables and sizes that a value's coordinates depend on."""
    found: set[object] = set()
    for part in post_order([value]):
        exprs: tuple[object, ...] = (part.expr,) if isinstance(part, IndexValue) else ()
        if isinstance(part, Load):
            exprs = part.index
        for expr in exprs:
            if isinstance(expr, IndexExpr):
                found |= atoms(expr)
    return frozenset(found)
