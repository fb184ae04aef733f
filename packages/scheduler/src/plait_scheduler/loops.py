"""The loops of one kernel: which variables, in which order.

Variables are split where that removes `//` and `%` from accesses, ordered so that most
bytes are touched contiguously, and merged where neighbours can be one loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait_ir_lowering import IndexExpr, Var, stride_of
from plait_scheduler.domains import Substitution, is_affine, move, split_variables
from plait_utils import dataclass

_LEAST_CONTIGUOUS = 4
"""Points that a loop over neighbouring elements keeps: as many as the shortest of vectors."""


@dataclass(frozen=True, slots=True)
class AccessCost:
    """An offset in elements, or a weightless expression that is computed anyway."""

    offset: IndexExpr
    nbytes: int
    buffer: str = ""


@dataclass(frozen=True, slots=True)
class Loops:
    """New variables, and the old ones in terms of them."""

    outer: tuple[Var, ...]
    inner: tuple[Var, ...]
    values: Substitution


def simplify_loops(
    outer: Sequence[Var], inner: Sequence[Var], accesses: Sequence[AccessCost], ordered: bool
) -> Loops:
    """Better loops over the same points; `ordered` keeps the order of inner points."""
    if any(var.extent.is_constant and not var.extent.as_int() for var in (*outer, *inner)):
        return Loops(tuple(outer), tuple(inner), {v: v.expr for v in (*outer, *inner)})
    state = _State([v for v in outer if v.expr.terms], [v for v in inner if v.expr.terms], {}, [])
    state.values = {v: v.expr for v in (*outer, *inner)}
    state.accesses = list(accesses)
    state.split()
    state.outer = _best_order(state.outer, state.accesses)
    if not ordered:
        state.inner = _best_order(state.inner, state.accesses)
    while state.merge_one():
        pass
    return Loops(tuple(state.outer), tuple(state.inner), state.values)


def canonical(loops: Loops, *, keep_inner: bool) -> Loops:
    """The same loops with variables named i0, i1, ... and r0, r1, ...

    A reduction over one element still has an inner domain (`keep_inner`), of one point.
    """
    outer = tuple(Var(f"i{n}", var.extent) for n, var in enumerate(loops.outer))
    inner = tuple(Var(f"r{n}", var.extent) for n, var in enumerate(loops.inner))
    renamed: Substitution = {
        old: new.expr for old, new in zip(loops.outer + loops.inner, outer + inner, strict=True)
    }
    values = {var: move(value, renamed) for var, value in loops.values.items()}
    if keep_inner and not inner:
        inner = (Var("r0", 1),)
    return Loops(outer, inner, values)


@dataclass(slots=True)
class _State:
    outer: list[Var]
    inner: list[Var]
    values: Substitution
    accesses: list[AccessCost]

    def apply(self, change: Substitution) -> None:
        self.values = {var: move(value, change) for var, value in self.values.items()}
        self.accesses = _moved(self.accesses, change)

    def split(self) -> None:
        """Split variables if that leaves fewer accesses with `//` and `%`."""
        offsets = [a.offset for a in self.accesses if a.nbytes and not is_affine(a.offset)]
        if not offsets:
            return
        least = dict.fromkeys(self._contiguous(), _LEAST_CONTIGUOUS)
        outer, changed_outer = split_variables(offsets, self.outer, least)
        moved = [move(offset, changed_outer) for offset in offsets]
        inner, changed_inner = split_variables(moved, self.inner, least)
        change = changed_outer | changed_inner
        before = sum(not is_affine(a.offset) for a in self.accesses)
        after = sum(not is_affine(a.offset) for a in _moved(self.accesses, change))
        if after < before:
            self.outer, self.inner = list(outer), list(inner)
            self.apply(change)

    def _contiguous(self) -> list[Var]:
        """Variables along which elements are touched one after another, more than by `//` and `%`.

        Pieces of them are too short for vectors; a few elements are cheaper to look up one by one.
        """
        found: list[Var] = []
        for var in (*self.outer, *self.inner):
            steps = [_step(a.offset, var) for a in self.accesses if a.nbytes]
            if steps.count(1) and steps.count(1) >= steps.count(None):
                found.append(var)
        return found

    def merge_one(self) -> bool:
        """Merge one pair of neighbours; False where none can be."""
        for domain in (self.inner, self.outer):
            for place in range(len(domain) - 1, 0, -1):
                slow, fast = domain[place - 1], domain[place]
                if not self._can_merge(slow, fast):
                    continue
                merged = Var(f"{slow.name}*{fast.name}", slow.extent * fast.extent)
                change: Substitution = {
                    slow: merged.expr // fast.extent,
                    fast: merged.expr % fast.extent,
                }
                domain[place - 1 : place + 1] = [merged]
                self.apply(change)
                return True
        return False

    def _can_merge(self, slow: Var, fast: Var) -> bool:
        for access in self.accesses:
            slow_stride = stride_of(access.offset, slow)
            fast_stride = stride_of(access.offset, fast)
            if slow_stride is None or fast_stride is None:
                return False
            if slow_stride is not fast_stride * fast.extent:
                return False
        return True


def _moved(accesses: Sequence[AccessCost], change: Substitution) -> list[AccessCost]:
    return [replace(a, offset=move(a.offset, change)) for a in accesses]


def _best_order(domain: Sequence[Var], accesses: Sequence[AccessCost]) -> list[Var]:
    """The order in which most bytes are contiguous in the last variable."""
    if len(domain) < 2:
        return list(domain)
    weighted = [a for a in accesses if a.nbytes]
    strides = [[_step(a.offset, var) for var in domain] for a in weighted]
    orders = [tuple(range(len(domain)))]
    for steps in strides:
        known = [0 if step is None else step for step in steps]
        order = tuple(sorted(orders[0], key=lambda n, known=known: (-known[n], n)))  # type: ignore[misc]
        if order not in orders and None not in steps and 0 not in known:
            orders.append(order)
    scores = [
        sum(
            a.nbytes
            for a, steps in zip(weighted, strides, strict=True)
            if steps[order[-1]] in (0, 1)
        )
        for order in orders
    ]
    best = max(range(len(orders)), key=lambda n: (scores[n], -n))
    return [domain[n] for n in orders[best]]


def _step(offset: IndexExpr, var: Var) -> int | None:
    stride = stride_of(offset, var)
    return abs(stride.as_int()) if stride is not None and stride.is_constant else None
