"""A kernel's points as Triton sees them: flat `x` over the outer domain, `r` over the inner.

A pointwise kernel that reads along one variable and writes along another (a transpose)
is tiled instead: `r` is the variable of the minority, `x` all the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from plait_ir_lowering import (
    Atom,
    IndexExpr,
    IndexValue,
    Load,
    Value,
    Var,
    as_index,
    bounds,
    evaluate,
    post_order,
    product,
    rewrite,
    substitute,
)
from plait_scheduler import (
    Accumulate,
    Domain,
    Kernel,
    Let,
    Param,
    Reduce,
    Sort,
    Statement,
    Store,
)

_INT32_LIMIT = 2**31 - 2**21
"""Room for the points behind the end that the last block masks."""

_LEAST_TILE = 16
"""Points along a variable that make a tile along it worth while."""


@dataclass(frozen=True, slots=True)
class Access:
    """One plain read or write: its element size and offset from the data pointer."""

    param: Param
    offset: IndexExpr
    is_store: bool
    domain: Domain


@dataclass(frozen=True, slots=True)
class Lanes:
    """Several points that a program computes for each of its `x`, one after another."""

    var: Var
    point: IndexExpr
    """Which of the kernel's points, by `x` and `var`."""
    numel: int
    """How many points the kernel has."""

    def is_ragged(self, x: Var) -> bool:
        """Whether there are more of `x` and `var` than points."""
        return (x.extent * self.var.extent).as_int() > self.numel


@dataclass(frozen=True, slots=True)
class FlatKernel:
    """A kernel whose domain is `x`, and `r` if it has inner variables."""

    kernel: Kernel
    """With index expressions over `x` and `r`; its own variables are only for people."""
    x: Var
    r: Var | None
    wide: bool
    """Whether offsets may pass 2^31, so that they take 64 bits."""
    tiled: bool = False
    """Whether `r` is an outer variable too, so that programs share it out among them."""
    lanes: Lanes | None = None

    @property
    def xnumel(self) -> int | None:
        """How many outer points; None where only the call knows."""
        return _known(self.x.extent)

    @property
    def rnumel(self) -> int | None:
        """How many inner points (1 without inner variables); None where only the call knows."""
        return 1 if self.r is None else _known(self.r.extent)

    def accesses(self) -> Iterator[Access]:
        """Every place that reads or writes, in order; indirect coordinates count as 0."""
        params = {param.name: param for param in self.kernel.params}
        seen: set[Load] = set()
        for statement in self.kernel.statements:
            domain = domain_of(statement)
            for value in post_order([statement.value]):
                if isinstance(value, Load) and value not in seen:
                    seen.add(value)
                    param = params[value.buffer]
                    plain = [as_index(0) if isinstance(i, Value) else i for i in value.index]
                    yield Access(param, param.layout.linear(plain), False, domain)
            if isinstance(statement, Store):
                param = params[statement.param]
                yield Access(param, param.layout.linear(statement.plain_index), True, domain)

    def step(self, access: Access, variable: Var | None) -> int:
        """By how many elements an access moves from the first point of `variable` on."""
        if variable is None or _known(variable.extent) == 1:
            return 0
        values = {self.x.name: 0, **({} if self.r is None else {self.r.name: 0})}
        values.update(dict.fromkeys(self.kernel.symbols, 64))
        if self.lanes is not None:
            values[self.lanes.var.name] = 0
        start = evaluate(access.offset, values)
        return evaluate(access.offset, {**values, variable.name: 1}) - start


def domain_of(statement: Statement) -> Domain:
    """Where a statement's value is computed."""
    return statement.domain if isinstance(statement, Let | Store) else Domain.INNER


def flatten(kernel: Kernel) -> FlatKernel:
    """`kernel` over one or two flat variables."""
    taken = taken_names(kernel)
    outer, across = kernel.outer, kernel.inner
    axes = None if kernel.inner else _transposed(kernel)
    if axes is not None:
        along, turned = axes
        others = tuple(var for var in outer if var not in axes)
        outer, across = (*others, along), (turned,)
    x, x_places = flat_variable(fresh("x", taken), outer)
    r, r_places = flat_variable(fresh("r", taken), across)
    moved = moved_statements(kernel, {**x_places, **r_places})
    flat = FlatKernel(moved, x, r if across else None, False, axes is not None)
    return replace(flat, wide=needs_64_bits(flat))


def moved_statements(kernel: Kernel, places: Mapping[Atom, IndexExpr]) -> Kernel:
    """A kernel whose statements are over other variables."""

    def index(expr: IndexExpr) -> IndexExpr:
        return substitute(expr, places)

    memo: dict[Value, Value] = {}
    statements: list[Statement] = []
    for statement in kernel.statements:
        value = rewrite(statement.value, lambda _: None, index, memo)
        if isinstance(statement, Store):
            moved = tuple(index(at) if isinstance(at, IndexExpr) else at for at in statement.index)
            statements.append(replace(statement, value=value, index=moved))
        else:
            statements.append(replace(statement, value=value))
    return replace(kernel, statements=tuple(statements))


def _transposed(kernel: Kernel) -> tuple[Var, Var] | None:
    """The variable along which most bytes lie contiguously, and the one for the others.

    None where no access jumps along the first while it is contiguous along the second.
    """
    variables = [var for var in kernel.outer if _is_long(var)]
    zeros = {
        **dict.fromkeys((v.name for v in kernel.outer), 0),
        **dict.fromkeys(kernel.symbols, 64),
    }
    steps: list[tuple[int, dict[Var, int]]] = []
    for access in FlatKernel(kernel, Var("", 1), None, False).accesses():
        start = evaluate(access.offset, zeros)
        moves = {v: abs(evaluate(access.offset, {**zeros, v.name: 1}) - start) for v in variables}
        if sum(move > 0 for move in moves.values()) > 1:  # vectors do not matter
            steps.append((access.param.dtype.itemsize * (1 + access.is_store), moves))
    weights = {v: sum(size for size, moves in steps if moves[v] == 1) for v in variables}
    if len(variables) < 2:
        return None
    along = max(variables, key=lambda var: weights[var])
    turned = {
        v: sum(size for size, moves in steps if moves[v] == 1 and moves[along] > 1)
        for v in variables
        if v is not along
    }
    across = max(turned, key=lambda var: turned[var])
    return (along, across) if turned[across] else None


def _is_long(var: Var) -> bool:
    return not var.extent.is_constant or var.extent.as_int() >= _LEAST_TILE


def taken_names(kernel: Kernel) -> set[str]:
    """Names that the text of `kernel` uses itself."""
    named = {s.name for s in kernel.statements if isinstance(s, Let | Reduce)}
    named.update(n for s in kernel.statements if isinstance(s, Accumulate | Sort) for n in s.names)
    return {"tl", "triton", "device", *named, *kernel.symbols, *(p.name for p in kernel.params)}


def fresh(name: str, taken: set[str]) -> str:
    """`name`, or with underscores if it is taken; takes it."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def flat_variable(name: str, variables: Sequence[Var]) -> tuple[Var, dict[Atom, IndexExpr]]:
    """One variable over the points of several, and these in terms of it."""
    flat = Var(name, product([var.extent for var in variables]))
    places: dict[Atom, IndexExpr] = {}
    step = as_index(1)
    for position, var in reversed(list(enumerate(variables))):
        place = flat.expr // step
        places[var] = place % var.extent if position else place
        step = step * var.extent
    return flat, places


def moved_values(values: Sequence[Value], places: Mapping[Atom, IndexExpr]) -> dict[Value, Value]:
    """Values over other variables, by what they were."""
    memo: dict[Value, Value] = {}
    return {value: moved_value(value, places, memo) for value in values}


def moved_value(value: Value, places: Mapping[Atom, IndexExpr], memo: dict[Value, Value]) -> Value:
    """A value over other variables."""
    return rewrite(value, lambda _: None, lambda expr: substitute(expr, places), memo)


def _known(expr: IndexExpr) -> int | None:
    return expr.as_int() if expr.is_constant else None


def needs_64_bits(flat: FlatKernel) -> bool:
    """Whether an offset or a position in a kernel may not fit in 32 bits."""
    exprs = [flat.x.extent, *([] if flat.r is None else [flat.r.extent])]
    exprs += [access.offset for access in flat.accesses()]
    for statement in flat.kernel.statements:
        for value in post_order([statement.value]):
            if isinstance(value, IndexValue):
                exprs.append(value.expr)
    return not all(fits(expr) for expr in exprs)


def fits(expr: IndexExpr) -> bool:
    """Whether every part of a sum stays below 2^31."""
    total = 0
    for term in expr.terms:
        low, high = bounds(IndexExpr((term,)))
        if low is None or high is None:
            return False
        total += max(abs(low), abs(high))
    return total < _INT32_LIMIT
