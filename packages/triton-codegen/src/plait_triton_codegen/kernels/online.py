"""Sums of exponentials below the maximum of their row, in the pass that finds the maximum.

Such a sum needs the maximum first, and so a pass of its own over a row that is too long for
registers. Here both are found at once: the sum so far is scaled to each new maximum.

    for start in range(0, 50257, RBLOCK):
        next = max(largest, max of v); total = total * exp(largest - next) + exp(v - next)
        largest = next

(M. Milakov, N. Gimelshein: Online normalizer calculation for softmax, 2018.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from plait_ir_lowering import DType, Local, Op, ReductionKind, loads_of, post_order
from plait_scheduler import Domain, Let, Reduce, Statement, Store, named_statements, resolved

Pass: TypeAlias = tuple[Domain, tuple[Statement, ...]]
OnlinePass: TypeAlias = tuple[Domain, tuple[Statement, ...], Reduce | None]


def online_passes(steps: Sequence[Pass]) -> list[OnlinePass]:
    """The passes of a kernel with those joined that can be one, which say below which maximum.

    What runs once for a row between the two, and gives the second nothing, runs behind them.
    """
    named = named_statements(statement for _, part in steps for statement in part)
    found: list[OnlinePass] = []
    rest = list(steps)
    while rest:
        domain, first = rest.pop(0)
        behind = int(len(rest) > 1 and _can_wait(rest[0], rest[1]))
        largest = None
        if behind < len(rest):
            largest = _largest((domain, first), rest[behind], named)
        if largest is not None:
            second = rest.pop(behind)[1]
            first = (*first, *(s for s in second if s not in first))
        found.append((domain, first, largest))
    return found


def _largest(first: Pass, second: Pass, named: Mapping[str, Statement]) -> Reduce | None:
    """The maximum that the first finds, if the second sums exponentials below it, and no more."""
    largest, total = _only_reduce(first), _only_reduce(second)
    if largest is None or total is None:
        return None
    if (largest.kind, total.kind) != (ReductionKind.MAX, ReductionKind.SUM):
        return None
    match resolved(total.value, named):
        case Op("exp", (below,)):
            match resolved(below, named):
                case Op("sub", (value, Local(name))) if name == largest.name:
                    same = resolved(value, named) is resolved(largest.value, named)
                    return largest if same else None
    return None


def _only_reduce(step: Pass) -> Reduce | None:
    domain, statements = step
    others = [s for s in statements if not isinstance(s, Let)]
    match others:
        case [Reduce() as reduce] if domain is Domain.INNER and reduce.value.dtype is DType.f32:
            return reduce
    return None


def _can_wait(between: Pass, second: Pass) -> bool:
    """Whether what runs once for a row names and writes nothing that the second pass takes."""
    domain, statements = between
    values = [statement.value for statement in second[1]]
    taken = {part.name for part in post_order(values) if isinstance(part, Local)}
    taken |= {load.buffer for load in loads_of(values)}
    return domain is Domain.OUTER and all(
        (isinstance(s, Store) and s.param not in taken)
        or (isinstance(s, Let) and s.name not in taken)
        for s in statements
    )
