"""Naming what the statements of a kernel share, and ordering them in phases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace

from plait_ir_lowering import (
    Atom,
    IndexExpr,
    IndexValue,
    Load,
    Local,
    Masked,
    Pack,
    Value,
    Var,
    atoms,
    post_order,
    rewrite,
)
from plait_scheduler.program import Accumulate, Domain, Let, Reduce, Sort, Statement, Store
from plait_utils import dataclass


def name_shared_values(
    statements: Sequence[Statement], inner: frozenset[Var]
) -> tuple[Statement, ...]:
    """Statements with `Let`s for what several of them compute, in order of phases.

    What does not vary over the inner domain is computed by outer statements. Names are
    t0, t1, ... in order. A value whose loads happen only under a mask is named only
    if some statement computes it without one.
    """
    facts = _Facts(inner)
    for number, statement in enumerate(statements):
        facts.add(number, statement)
    chosen = facts.chosen()
    drafts = list(_with_lets(statements, chosen, facts))
    levels = _levels(drafts, facts)
    order = sorted(range(len(drafts)), key=lambda n: (levels[n], _is_inner(drafts[n]), n))
    return _renamed([drafts[n] for n in order])


@dataclass(frozen=True, slots=True)
class _Draft:
    """A statement, or a value to be named (`statement` is None)."""

    value: Value
    statement: Statement | None
    domain: Domain


def _is_inner(draft: _Draft) -> bool:
    return draft.domain is Domain.INNER


def domain_of(statement: Statement) -> Domain:
    """Where a statement's value is computed; for all that combines points, the inner domain."""
    return statement.domain if isinstance(statement, Let | Store) else Domain.INNER


@dataclass(slots=True)
class _Facts:
    """What is known of each value of a kernel."""

    inner: frozenset[Var]
    order: dict[Value, None] = field(default_factory=dict)
    varies: dict[Value, bool] = field(default_factory=dict)
    level: dict[Value, int] = field(default_factory=dict)
    """How many reductions and sorts, one after another, must be finished first."""
    uses: dict[Value, int] = field(default_factory=dict)
    """The statements that compute the value, as bits."""
    parents: dict[Value, dict[Value, None]] = field(default_factory=dict)
    roots: dict[Value, None] = field(default_factory=dict)
    certain: dict[Value, None] = field(default_factory=dict)
    """Values that some statement computes at all of its points."""
    certain_inner: dict[Value, None] = field(default_factory=dict)
    """Those among them that an inner statement computes."""
    results: dict[str, int] = field(default_factory=dict)
    """The level from which a result of a reduction, a scan or a sort is known."""
    along: set[str] = field(default_factory=set)
    """The results of scans and sorts, which vary along rows."""

    def add(self, number: int, statement: Statement) -> None:
        """Take in one statement; those whose results it uses must have come before."""
        root = statement.value
        self.roots[root] = None
        for value in post_order([root]):
            if value not in self.varies:
                self._enter(value)
            self.uses[value] |= 1 << number
        for value in unconditional(root):
            self.certain[value] = None
            if domain_of(statement) is Domain.INNER:
                self.certain_inner[value] = None
        if isinstance(statement, Reduce):
            self.results[statement.name] = self.level[root] + 1
        elif isinstance(statement, Accumulate):
            self.results.update(dict.fromkeys(statement.names, self.level[root]))
            self.along.update(statement.names)
        elif isinstance(statement, Sort):
            self.results.update(dict.fromkeys(statement.names, self.level[root] + 1))
            self.along.update(statement.names)

    def _enter(self, value: Value) -> None:
        self.order[value] = None
        self.uses[value] = 0
        self.parents[value] = {}
        operands = value.operands
        for operand in operands:
            self.parents[operand][value] = None
        own = isinstance(value, Local) and value.name in self.along
        own = own or any(self.inner & _variables(expr) for expr in _index_expressions(value))
        self.varies[value] = own or any(self.varies[operand] for operand in operands)
        known = self.results.get(value.name, 0) if isinstance(value, Local) else 0
        self.level[value] = max([known, *(self.level[operand] for operand in operands)])

    def chosen(self) -> dict[Value, None]:
        """The values to name."""
        found: dict[Value, None] = {}
        for value in self.order:
            nameable = value in self.certain and (value.operands or isinstance(value, Load))
            nameable = nameable and not isinstance(value, Pack)
            if nameable and (self._is_invariant(value) or self._is_shared(value)):
                found[value] = None
        return found

    def _is_invariant(self, value: Value) -> bool:
        """A largest part of an inner statement's value that is the same along a row."""
        if not self.inner or self.varies[value] or value not in self.certain_inner:
            return False
        return value in self.roots or any(self.varies[parent] for parent in self.parents[value])

    def _is_shared(self, value: Value) -> bool:
        uses = self.uses[value]
        if uses & (uses - 1) == 0:
            return False
        parents = self.parents[value]
        if value in self.roots or len(parents) > 1:
            return True
        return any(self.uses[parent] != uses or parent not in self.certain for parent in parents)


def _variables(expr: IndexExpr) -> frozenset[Atom]:
    return atoms(expr)


def _index_expressions(value: Value) -> Iterator[IndexExpr]:
    if isinstance(value, Load):
        yield from (at for at in value.index if isinstance(at, IndexExpr))
    elif isinstance(value, IndexValue):
        yield value.expr


def unconditional(root: Value) -> Iterator[Value]:
    """The values that computing `root` computes whatever masks say, each once."""
    seen: set[Value] = set()
    stack = [root]
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        if isinstance(value, Masked):
            stack += (value.mask, value.other)
        else:
            stack += value.operands


def _with_lets(
    statements: Sequence[Statement], chosen: dict[Value, None], facts: _Facts
) -> Iterator[_Draft]:
    """Each statement, after the values that it is the first to need."""
    done: set[Value] = set()
    for statement in statements:
        for value in post_order([statement.value]):
            if value in chosen and value not in done:
                done.add(value)
                inner = bool(facts.inner) and facts.varies[value]
                yield _Draft(value, None, Domain.INNER if inner else Domain.OUTER)
        yield _Draft(statement.value, statement, domain_of(statement))


def _levels(drafts: Sequence[_Draft], facts: _Facts) -> list[int]:
    """The phase of each draft: a named value's is that of its first user."""
    named = {draft.value: n for n, draft in enumerate(drafts) if draft.statement is None}
    levels = [-1 if draft.statement is None else facts.level[draft.value] for draft in drafts]
    for number in range(len(drafts) - 1, -1, -1):
        draft = drafts[number]
        level = levels[number]
        for value in _direct_names(draft, named):
            at = named[value]
            levels[at] = level if levels[at] < 0 else min(levels[at], level)
    return [max(level, 0) for level in levels]


def _direct_names(draft: _Draft, named: dict[Value, int]) -> Iterator[Value]:
    """The named values that a draft refers to."""
    seen: set[Value] = set()
    stack = list(draft.value.operands) if draft.statement is None else [draft.value]
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in named:
            yield value
        else:
            stack += value.operands


def _renamed(drafts: Sequence[_Draft]) -> tuple[Statement, ...]:
    """Final statements, with names by position."""
    memo: dict[Value, Value] = {}
    count = 0
    found: list[Statement] = []
    for draft in drafts:
        statement = draft.statement
        value = rewrite(draft.value, _keep, _same, memo)
        if isinstance(statement, Store):
            moved = [memo[at] if isinstance(at, Local) else at for at in statement.index]
            index = tuple(at for at in moved if isinstance(at, IndexExpr | Local))
            found.append(replace(statement, index=index, value=value))
            continue
        if isinstance(statement, Accumulate | Sort):
            names = tuple(f"t{count + number}" for number in range(len(statement.names)))
            count += len(names)
            renamed = replace(statement, names=names, value=value)
            memo.update(zip(statement.locals, renamed.locals, strict=True))
            found.append(renamed)
            continue
        name, count = f"t{count}", count + 1
        if statement is None:
            found.append(Let(name, draft.domain, value))
            memo[draft.value] = Local(name, value.dtype)
        elif isinstance(statement, Let):
            found.append(Let(name, statement.domain, value))
            memo[Local(statement.name, value.dtype)] = Local(name, value.dtype)
        elif isinstance(statement, Reduce):
            found.append(Reduce(name, statement.kind, value))
            result = statement.kind.result_dtype(value.dtype)
            memo[Local(statement.name, result)] = Local(name, result)
    return tuple(found)


def _keep(value: Value) -> Value | None:
    return None


def _same(expr: IndexExpr) -> IndexExpr:
    return expr


def names_in(values: Iterable[Value]) -> list[str]:
    """The locals that `values` refer to, each once, in order of first use."""
    found = [value.name for value in post_order(list(values)) if isinstance(value, Local)]
    return list(dict.fromkeys(found))
