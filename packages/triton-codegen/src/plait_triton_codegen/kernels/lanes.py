"""Points that draw of one counter, which one program computes, so that it does the rounds once.

ATen's kernels give the numbers of a counter to positions that lie as many points apart as a GPU
runs threads. A program that computes all of them loops over these *lanes*: the counter and what is
made of its words are the same in each, and the compiler computes them once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from plait_ir_lowering import (
    Atom,
    IndexExpr,
    IndexValue,
    Op,
    Quotient,
    Remainder,
    Value,
    Var,
    atoms,
    post_order,
    rewrite,
    substitute,
)
from plait_scheduler import Kernel, Let, Store
from plait_triton_codegen.kernels.space import (
    FlatKernel,
    Lanes,
    fresh,
    moved_statements,
    needs_64_bits,
    taken_names,
)

_COUNTS = 4, 2
"""How many numbers a counter gives."""
_LEAST_STEP = 32
"""How far lanes lie apart at least: the threads of a warp are at neighbouring points. Neighbours of
one counter share it by `draws.in_fours`."""
_LEAST_LANES = 2
"""As many points there are at least: programs compute all lanes, and rounds cost as two of them."""


def by_lanes(flat: FlatKernel) -> FlatKernel:
    """`flat` over the counters that its points draw of, and their lanes; itself where it draws
    nothing of that kind, or too little."""
    numel = flat.xnumel
    if flat.r is not None or numel is None or not _is_pointwise(flat.kernel):
        return flat
    values = post_order([statement.value for statement in flat.kernel.statements])
    draws = [value for value in values if isinstance(value, Op) and value.name == "philox"]
    steps = sorted({step for draw in draws for step in _steps(draw, flat.x)})
    for count, step in product(_COUNTS, steps):
        if step < _LEAST_STEP or numel < _LEAST_LANES * step:
            continue
        if any(_shares(draw, flat.x, count, step) for draw in draws):
            return _over_lanes(flat, numel, count, step)
    return flat


def _is_pointwise(kernel: Kernel) -> bool:
    return all(
        isinstance(each, Let) or (isinstance(each, Store) and each.kind is None)
        for each in kernel.statements
    )


def _steps(draw: Op, x: Var) -> Iterator[int]:
    """What threads' numbers may be: those of points that have one counter or word, or fewer."""
    for value in post_order(draw.args):
        if isinstance(value, IndexValue):
            for part in _quotients(value.expr):
                if part.numerator == x.expr and part.denominator.is_constant:
                    points = part.denominator.as_int()
                    yield from (points // n for n in (1, *_COUNTS) if not points % n)


def _quotients(expr: IndexExpr) -> Iterator[Quotient]:
    for monomial, _ in expr.terms:
        for atom in monomial:
            if isinstance(atom, Quotient | Remainder):
                yield from _quotients(atom.numerator)
            if isinstance(atom, Quotient):
                yield atom


def _shares(draw: Op, x: Var, count: int, step: int) -> bool:
    """Whether a draw is of one counter in all lanes."""
    turn, lane, thread = Var("turn", x.extent), Var("lane", count), Var("thread", step)
    place: dict[Atom, IndexExpr] = {x: (turn.expr * count + lane.expr) * step + thread.expr}
    found: set[Atom] = set()

    def index(expr: IndexExpr) -> IndexExpr:
        found.update(atoms(substitute(expr, place)))
        return expr

    for value in draw.args[:3]:  # key, counter and thread
        rewrite(value, _same, index)
    return lane not in found


def _same(_: Value) -> Value | None:
    return None


def _over_lanes(flat: FlatKernel, numel: int, count: int, step: int) -> FlatKernel:
    x = Var(flat.x.name, -(-numel // (count * step)) * step)
    lane = Var(fresh("lane", taken_names(flat.kernel) | {x.name}), count)
    place = (x.expr // step * count + lane.expr) * step + x.expr % step
    moved = moved_statements(flat.kernel, {flat.x: place})
    made = replace(flat, kernel=moved, x=x, lanes=Lanes(lane, place, numel))
    return replace(made, wide=needs_64_bits(made))
