"""Programs that only move data: they give the same bits as native code and as torch operations."""

from __future__ import annotations

import math

from plait_ir_lowering import DType, Op, Value, has_one_result, post_order
from plait_scheduler.combined import separated
from plait_scheduler.program import Kernel, Launch, Let, OnError, Program, Statement, Store
from plait_scheduler.sizes import at_sizes

_ONLY_MOVED = frozenset({DType.u16, DType.u32, DType.u64, DType.f8e4m3fn, DType.f8e5m2})
"""Types with which torch does little else on a CPU."""


def moved_points(program: Program) -> int | None:
    """At how many points the launches of a program move data, one after the other.

    None where a kernel computes what another program may round otherwise, and where sizes are
    known only when the program runs. Calls of operators are the same ones whoever makes them.
    """
    program = separated(program)
    kernels = {kernel.name: kernel for kernel in program.kernels if isinstance(kernel, Kernel)}
    if program.symbols or not all(map(_only_moves, kernels.values())):
        return None
    launches = [step.launch if isinstance(step, OnError) else step for step in program.steps]
    return sum(_points(kernels[s.kernel], s) for s in launches if isinstance(s, Launch))


def _points(kernel: Kernel, launch: Launch) -> int:
    sizes = dict(zip(kernel.symbols, launch.symbols, strict=True))
    extents = [at_sizes(var.extent, sizes) for var in kernel.outer + kernel.inner]
    return math.prod(extent.as_int() for extent in extents)


def _only_moves(kernel: Kernel) -> bool:
    return all(map(_is_move, kernel.statements))


def _is_move(statement: Statement) -> bool:
    match statement:
        case Let(_, _, value):
            return _has_one_result(value)
        case Store(value=value, kind=None, first=None):
            return _has_one_result(value)
    return False


def _has_one_result(root: Value) -> bool:
    return all(
        has_one_result(value) and _is_for_torch(value)
        for value in post_order([root])
        if isinstance(value, Op)
    )


def _is_for_torch(op: Op) -> bool:
    """Whether torch has the operation for its types."""
    return op.name in ("to", "where") or all(a.dtype not in _ONLY_MOVED for a in op.args)
