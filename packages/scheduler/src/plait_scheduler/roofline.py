"""What a kernel moves and computes: what its speed is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from plait_ir_lowering import IndexExpr, Load, Local, Op, TensorRef, Value, Var, atoms, post_order
from plait_scheduler.combined import members_of
from plait_scheduler.program import (
    Accumulate,
    AnyKernel,
    Attend,
    Domain,
    Kernel,
    Let,
    Mix,
    Param,
    Reduce,
    Sort,
    Statement,
    Store,
)
from plait_scheduler.sizes import estimate
from plait_utils import dataclass

_FREE = frozenset({"to", "bitcast"})


@dataclass(frozen=True, slots=True)
class KernelWork:
    """Of one launch; sizes that are known only when the program runs are estimated."""

    bytes_read: int
    """Of different elements that are read from memory, as if all stayed in the cache."""
    bytes_written: int
    operations: int
    """Scalar operations but conversions; an `exp` is one, as is each step of a reduction."""

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written


def kernel_work(kernel: AnyKernel) -> KernelWork:
    """What one launch of a kernel reads, writes and computes."""
    if not isinstance(kernel, Kernel):
        works = [kernel_work(member) for member in members_of(kernel)]
        return KernelWork(
            sum(work.bytes_read for work in works),
            sum(work.bytes_written for work in works),
            sum(work.operations for work in works),
        )
    params = {param.name: param for param in kernel.params}
    read: dict[str, dict[object, int]] = {}
    written: dict[str, dict[object, int]] = {}
    operations = 0
    for statement in kernel.statements:
        variables = _variables(kernel, statement)
        points = _points(variables)
        operations += points * _operations(statement)
        for load in _loads(statement):
            elements = _touched(load.index, variables)
            read.setdefault(load.buffer, {})[load.index] = elements
        if isinstance(statement, Attend | Mix):
            for ref in statement.refs:
                layout = ref.view or params[ref.buffer].layout
                read.setdefault(ref.buffer, {})[ref] = estimate(layout.numel)
            for name in statement.made:
                written[name] = {statement: estimate(params[name].layout.numel)}
            operations += points * _products(statement, params)
        if isinstance(statement, Store):
            elements = _touched(statement.index, variables)
            written.setdefault(statement.param, {})[statement.index] = elements
            if statement.kind is not None:
                read.setdefault(statement.param, {})[statement.index] = elements
    return KernelWork(_bytes(read, params), _bytes(written, params), operations)


def _variables(kernel: Kernel, statement: Statement) -> tuple[Var, ...]:
    """The variables of the loops that a statement runs in."""
    if isinstance(statement, Let | Store) and statement.domain is Domain.OUTER:
        return kernel.outer
    return kernel.outer + kernel.inner


def _products(statement: Attend | Mix, params: dict[str, Param]) -> int:
    """Operations of all products for each pair of a row and a place, and of a softmax."""

    def columns(ref: TensorRef) -> int:
        return estimate((ref.view or params[ref.buffer].layout).size[-1])

    if isinstance(statement, Attend):
        return 2 * (columns(statement.queries) + columns(statement.values)) + 4
    lengths = [columns(left) for left, _ in statement.factors]
    return 2 * sum([*lengths, *map(columns, statement.values)])


def _points(variables: Iterable[Var]) -> int:
    return math.prod(estimate(var.extent) for var in variables)


def _values(statement: Statement) -> tuple[Value, ...]:
    if isinstance(statement, Accumulate):
        return (statement.value, statement.combine)
    return (statement.value,)


def _loads(statement: Statement) -> Iterator[Load]:
    return (part for part in post_order(_values(statement)) if isinstance(part, Load))


def _operations(statement: Statement) -> int:
    """At one point."""
    parts = post_order(_values(statement))
    own = sum(isinstance(part, Op) and part.name not in _FREE for part in parts)
    combines = isinstance(statement, Reduce | Sort) or getattr(statement, "kind", None) is not None
    return own + combines


def _touched(index: Sequence[IndexExpr | Value], variables: Sequence[Var]) -> int:
    """At most so many different elements are at these coordinates."""
    if any(isinstance(at, Local) or not isinstance(at, IndexExpr) for at in index):
        return _points(variables)
    found = {atom for at in index if isinstance(at, IndexExpr) for atom in atoms(at)}
    return _points(var for var in variables if var in found)


def _bytes(accesses: dict[str, dict[object, int]], params: dict[str, Param]) -> int:
    total = 0
    for name, places in accesses.items():
        layout = params[name].layout
        elements = min(sum(places.values()), estimate(layout.numel))
        total += elements * params[name].dtype.itemsize
    return total
