"""Quotients of exponentials and their sum, for which a code generator needs no division.

A division of vectors takes as long as seven other operations. Of what is at most its divisor, where
this is the same all along a row and neither tiny nor huge, a product with the reciprocal can be
corrected by the remainder instead. So it is in a softmax: exponentials of what lies below the
maximum of their row are at most 1, one of them is 1, and none is more than their sum. What is not
finite in a row makes the sum NaN, or is an exponential of 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from plait_ir_lowering import DType, Local, Op, ReductionKind, Value, post_order
from plait_scheduler.program import Let, Reduce, Statement


def named_statements(statements: Iterable[Statement]) -> dict[str, Statement]:
    """The statements that a name stands for, by it."""
    return {s.name: s for s in statements if isinstance(s, Let | Reduce)}


def shares(statements: Iterable[Statement]) -> frozenset[Value]:
    """The quotients in the statements of a kernel that are such shares."""
    given = tuple(statements)
    named = named_statements(given)
    quotients = (
        value
        for statement in given
        for value in post_order([statement.value])
        if isinstance(value, Op) and value.name == "div" and value.dtype is DType.f32
    )
    return frozenset(value for value in quotients if _is_share(value, named))


def _is_share(quotient: Op, named: Mapping[str, Statement]) -> bool:
    part, whole = (resolved(arg, named) for arg in quotient.args)
    total = named.get(whole.name) if isinstance(whole, Local) else None
    if not isinstance(total, Reduce) or total.kind is not ReductionKind.SUM:
        return False
    return resolved(total.value, named) is part and is_below_largest(part, named)


def is_below_largest(value: Value, named: Mapping[str, Statement]) -> bool:
    """Whether it is the exponential of something less the largest of this in the row."""
    match value:
        case Op("exp", (below,)):
            match resolved(below, named):
                case Op("sub", (something, largest)):
                    most = resolved(largest, named)
                    reduce = named.get(most.name) if isinstance(most, Local) else None
                    return (
                        isinstance(reduce, Reduce)
                        and reduce.kind is ReductionKind.MAX
                        and resolved(reduce.value, named) is resolved(something, named)
                    )
    return False


def resolved(value: Value, named: Mapping[str, Statement]) -> Value:
    """What a name stands for, but for reductions."""
    while isinstance(value, Local) and isinstance(let := named.get(value.name), Let):
        value = let.value
    return value
