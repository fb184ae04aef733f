"""The loops of a kernel in sequence, and what passes from one to the next.

Inner statements share one loop until one of them needs a reduction's result, which is
known only when its loop has ended. A value that is named in one loop and used in a later
one is either kept in row scratch (one element for each inner point) or computed again.

Rows that are sorted are in registers as a whole: kernels that sort have no loops over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from plait_ir_lowering import CheckedIndex, DType, Load, Local, Masked, Value, post_order
from plait_scheduler.nodes import work_of
from plait_scheduler.program import (
    Access,
    Accumulate,
    Attend,
    Domain,
    Kernel,
    Let,
    Mix,
    Reduce,
    Sort,
    Statement,
    Store,
)
from plait_scheduler.statements import domain_of, names_in
from plait_utils import dataclass

_RECOMPUTE_LOADS = 2
_RECOMPUTE_OPERATIONS = 4


@dataclass(frozen=True, slots=True)
class Phase:
    """Statements that run together at each outer point.

    With `Domain.INNER` they are one loop over the inner domain: everything that they
    use is computed in it, restored from row scratch, or known for the whole row. With
    `Domain.OUTER` they run once.
    """

    domain: Domain
    statements: tuple[Statement, ...]
    """Named values of earlier phases that are computed again come first."""
    saves: tuple[str, ...] = ()
    """Values computed here that later phases read from row scratch."""
    restores: tuple[str, ...] = ()
    """Values of earlier phases that this one reads from row scratch."""


def phases(kernel: Kernel) -> tuple[Phase, ...]:
    """The phases of `kernel`, in order.

    A value is computed again where it takes at most two plain loads and a few cheap
    operations; otherwise it is kept.
    """
    return _Analysis(kernel).phases()


def row_scratch(sequence: Sequence[Phase]) -> tuple[tuple[str, DType], ...]:
    """The named values that need one element of scratch for each inner point, with their types."""
    return tuple(
        (local.name, local.dtype)
        for phase in sequence
        for statement in phase.statements
        for local in _inner_names(statement)
        if local.name in phase.saves
    )


def _inner_names(statement: Statement) -> tuple[Local, ...]:
    """What a statement names at each inner point."""
    match statement:
        case Let(name, Domain.INNER, value):
            return (Local(name, value.dtype),)
        case Accumulate():
            return statement.locals
    return ()


@dataclass(slots=True)
class _Analysis:
    kernel: Kernel
    outer: dict[int, list[Statement]] = field(default_factory=dict)
    """Outer statements before each inner loop."""
    inner: dict[int, list[Statement]] = field(default_factory=dict)
    level: dict[str, int] = field(default_factory=dict)
    """The loop from which on a local is known."""
    lets: dict[str, Let | Accumulate] = field(default_factory=dict)
    """What names each inner value."""
    last_use: dict[str, int] = field(default_factory=dict)
    overwritten: dict[str, int] = field(default_factory=dict)
    """The loop in which a parameter that is also read is stored to."""

    def phases(self) -> tuple[Phase, ...]:
        self._assign_levels()
        recomputed = self._recomputed()
        saved = {
            name
            for name, last in self.last_use.items()
            if name in self.lets and last > self.level[name] and name not in recomputed
        }
        found: list[Phase] = []
        for level in range(max([*self.outer, *self.inner, 0]) + 1):
            if self.outer.get(level):
                found.append(Phase(Domain.OUTER, tuple(self.outer[level])))
            if self.inner.get(level):
                found.append(self._inner_phase(level, recomputed, saved))
        return tuple(found)

    def _assign_levels(self) -> None:
        current = 0
        both = {p.name for p in self.kernel.params if p.access is Access.READ_WRITE}
        for statement in self.kernel.statements:
            if isinstance(statement, Attend | Mix):
                raise TypeError("an attention is no sequence of loops")
            if isinstance(statement, Sort):
                raise TypeError("a sort needs its row as a whole")
            needed = max([self.level[n] for n in names_in([statement.value])], default=0)
            current = max(current, needed)
            place = current
            if domain_of(statement) is Domain.INNER:
                self.inner.setdefault(place, []).append(statement)
            else:
                if isinstance(statement, Store) and self.inner.get(place):
                    place += 1
                self.outer.setdefault(place, []).append(statement)
            if isinstance(statement, Store):
                if statement.param in both:
                    self.overwritten[statement.param] = place
            elif isinstance(statement, Reduce):
                self.level[statement.name] = place + 1
            else:
                names = (statement.name,) if isinstance(statement, Let) else statement.names
                self.level.update(dict.fromkeys(names, place))
                if isinstance(statement, Accumulate) or statement.domain is Domain.INNER:
                    self.lets.update(dict.fromkeys(names, statement))
        self._find_last_uses()

    def _find_last_uses(self) -> None:
        for level, statements in self.inner.items():
            for statement in statements:
                for name in self._reached(statement.value):
                    self.last_use[name] = max(self.last_use.get(name, 0), level)

    def _reached(self, value: Value) -> Iterator[str]:
        """Inner named values that `value` uses, also through others."""
        stack, seen = names_in([value]), set[str]()
        while stack:
            name = stack.pop()
            if name in self.lets and name not in seen:
                seen.add(name)
                yield name
                stack += names_in([self.lets[name].value])

    def _recomputed(self) -> set[str]:
        """Named values that are cheap to compute again in every later loop."""
        found: set[str] = set()
        loads: dict[str, int] = {}
        operations: dict[str, int] = {}
        for name, let in self.lets.items():
            work = work_of(let.value)
            loads[name], operations[name] = work.loads, work.cheap
            for part in names_in([let.value]):
                if part in found:
                    loads[name] += loads[part]
                    operations[name] += operations[part]
                elif part in self.lets:
                    loads[name] += 1
            if (
                isinstance(let, Let)
                and not work.expensive
                and not work.moderate
                and loads[name] <= _RECOMPUTE_LOADS
                and operations[name] <= _RECOMPUTE_OPERATIONS
                and self._is_plain(let.value, self.last_use.get(name, 0))
            ):
                found.add(name)
        return found

    def _is_plain(self, value: Value, last_use: int) -> bool:
        """No guarded loads, none at places that vary along the row with data, and none of
        elements overwritten by then."""
        for part in post_order([value]):
            if isinstance(part, Masked | CheckedIndex):
                return False
            if isinstance(part, Load) and (
                any(not self._is_row_value(place) for place in part.operands)
                or last_use > self.overwritten.get(part.buffer, last_use)
            ):
                return False
        return True

    def _is_row_value(self, value: Value) -> bool:
        return isinstance(value, Local) and value.name not in self.lets

    def _inner_phase(self, level: int, recomputed: set[str], saved: set[str]) -> Phase:
        own = self.inner[level]
        named = {local.name for statement in own for local in _inner_names(statement)}
        repeated: set[str] = set()
        restored: dict[str, None] = {}
        stack = names_in([statement.value for statement in own])
        while stack:
            name = stack.pop()
            if name not in self.lets or name in named or name in repeated:
                continue
            if name in recomputed:
                repeated.add(name)
                stack += names_in([self.lets[name].value])
            else:
                restored[name] = None
        again = [let for name, let in self.lets.items() if name in repeated]
        return Phase(
            Domain.INNER,
            (*again, *own),
            tuple(name for name in self.lets if name in named and name in saved),
            tuple(name for name in self.lets if name in restored),
        )
