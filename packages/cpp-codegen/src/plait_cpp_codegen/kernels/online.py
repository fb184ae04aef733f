"""Sums of exponentials below the maximum of their row, in one pass over long rows.

Such a sum needs the maximum first: two loops over the row, of which one waits for memory and the
other one computes. Here a row goes by blocks that the nearest cache holds. The sum so far is scaled
to the maximum that a block brings, and the next block is on its way while one is computed:

    for (r0: blocks)
      before = max; max = that of the block, where it is more; sum *= exp(before - max)
      sum += sum of exp(p0[r0] - max), with p0[r0 + block] asked for

(M. Milakov, N. Gimelshein: Online normalizer calculation for softmax, 2018.)
"""

from __future__ import annotations

from collections.abc import Sequence

from plait_cpp_codegen.kernels.index import kernel_index
from plait_cpp_codegen.kernels.plan import LoopPlan
from plait_ir_lowering import (
    DType,
    IndexExpr,
    Load,
    Local,
    ReductionKind,
    as_index,
    post_order,
    stride_of,
)
from plait_scheduler import (
    Access,
    Domain,
    Let,
    Phase,
    Reduce,
    Statement,
    Store,
    is_below_largest,
    resolved,
)
from plait_utils import dataclass

BLOCK = 2048
"""Places of a block: 8 KiB of floats. Blocks of 1024 to 4096 take the same time."""
_FEWEST = 4096
"""Rows have so many places at least: the nearest cache holds shorter ones."""


@dataclass(frozen=True, slots=True)
class Online:
    """The second of two loops that are one."""

    phase: Phase
    largest: Reduce
    total: Reduce


def merged_phases(plan: LoopPlan) -> list[tuple[Phase, Online | None]]:
    """The phases of a kernel, each with the one behind it that can share its pass.

    What runs once for a row between the two, and gives the second nothing, runs behind them.
    """
    merged: list[tuple[Phase, Online | None]] = []
    rest = list(plan.phases)
    while rest:
        phase = rest.pop(0)
        behind = int(bool(rest) and _can_wait(plan, rest))
        joined = _online(plan, phase, rest[behind]) if behind < len(rest) else None
        if joined is not None:
            rest.pop(behind)
        merged.append((phase, joined))
    return merged


def _can_wait(plan: LoopPlan, rest: Sequence[Phase]) -> bool:
    """Whether the first of some phases may run behind the second: it only writes, or names what
    that does not use."""
    first = rest[0]
    if first.domain is Domain.INNER or len(rest) == 1:
        return False
    written = {p.name for p in plan.kernel.params if p.access is Access.WRITE}
    values = post_order([statement.value for statement in rest[1].statements])
    used = {value.name for value in values if isinstance(value, Local)}
    return all(
        (isinstance(s, Store) and s.param in written) or (isinstance(s, Let) and s.name not in used)
        for s in first.statements
    )


def asked_ahead(plan: LoopPlan, phase: Phase) -> list[str]:
    """Asks for what a loop reads along the row a block later, once a vector."""
    last, layouts = plan.kernel.inner[-1], {p.name: p.layout for p in plan.kernel.params}
    places: dict[str, None] = {}
    for value in post_order([statement.value for statement in phase.statements]):
        if isinstance(value, Load) and not value.operands:
            plain = [at for at in value.index if isinstance(at, IndexExpr)]
            offset = layouts[value.buffer].linear(plain)
            if stride_of(offset, last) is as_index(1):
                places[f"{value.buffer} + {kernel_index(offset)} + {BLOCK}"] = None
    return [f"if (L > 1) __builtin_prefetch({place});" for place in places]


def _online(plan: LoopPlan, first: Phase, second: Phase) -> Online | None:
    """What makes two loops one pass; None where they cannot be."""
    if not _is_long(plan):
        return None
    largest, total = _only_reduce(first), _only_reduce(second)
    if largest is None or total is None:
        return None
    if (largest.kind, total.kind) != (ReductionKind.MAX, ReductionKind.SUM):
        return None
    named: dict[str, Statement] = {
        s.name: s for s in (*first.statements, *second.statements) if isinstance(s, Let | Reduce)
    }
    if is_below_largest(resolved(total.value, named), named):
        return Online(second, largest, total)
    return None


def _is_long(plan: LoopPlan) -> bool:
    if plan.lanes == 1 or len(plan.kernel.inner) != 1:
        return False
    extent = plan.kernel.inner[0].extent
    return extent.is_constant and extent.constant >= _FEWEST


def _only_reduce(phase: Phase) -> Reduce | None:
    """The reduction of a loop that does nothing else, nor keeps or needs what other loops name."""
    if phase.domain is not Domain.INNER or phase.saves or phase.restores:
        return None
    reduces = [s for s in phase.statements if not isinstance(s, Let)]
    match reduces:
        case [Reduce() as reduce] if reduce.value.dtype in (DType.f32, DType.f64):
            return reduce
    return None
