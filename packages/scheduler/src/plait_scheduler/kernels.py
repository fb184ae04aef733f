"""From a fusion group to a kernel in canonical form.

The nodes' values are written over the kernel's loops, each read of a buffer that the
kernel computes replaced by its value. What several statements share is then named once
(`Let`), what does not vary over the inner domain is computed once for each row, and
everything is renamed by position, so that equal computations give equal kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from hashlib import sha256

from plait_ir_lowering import (
    Attention,
    Buffer,
    IndexExpr,
    IndexValue,
    Load,
    Local,
    Mixture,
    Op,
    ReductionKind,
    Scatter,
    Sym,
    Value,
    Var,
    as_index,
    atoms,
    carried,
    components,
    loads_of,
    post_order,
    rewrite,
    sorted_words,
)
from plait_scheduler.domains import Substitution, move
from plait_scheduler.first_points import at_first_points
from plait_scheduler.groups import Group, Member
from plait_scheduler.loops import AccessCost, Loops, canonical, simplify_loops
from plait_scheduler.nodes import AlongRow, Node, ScanKind, SortKind, keeps_order
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.program import (
    Access,
    Accumulate,
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
from plait_scheduler.sizes import buffer_bytes, expressions_in
from plait_scheduler.statements import name_shared_values
from plait_scheduler.widening import unrounded, widened
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel without its final name, and the buffers for its parameters."""

    kernel: Kernel
    buffers: tuple[str, ...]
    symbols: tuple[IndexExpr, ...]
    offsets: tuple[int, ...] = ()
    """As in `plait_scheduler.program.Launch`."""


def build_kernel(
    group: Group,
    stored: Sequence[str],
    buffers: dict[str, Buffer],
    options: SchedulerOptions,
    wide: frozenset[str] = frozenset(),
) -> BuiltKernel:
    """The kernel of `group`; of what it computes only `stored` goes to memory.

    What else it computes is not rounded if it is among `wide`.
    """
    loops = _loops(group, stored, buffers, options)
    draft = _Draft(buffers, loops, wide.difference(stored), {}, [])
    for member in group.members:
        draft.add(member, member.node.name in stored)
    statements = name_shared_values(draft.statements, frozenset(loops.inner))
    return _with_positional_params(statements, loops, buffers)


def _loops(
    group: Group, stored: Sequence[str], buffers: dict[str, Buffer], options: SchedulerOptions
) -> Loops:
    values: Substitution = {v: v.expr for v in group.outer + group.inner}
    loops = Loops(group.outer, group.inner, values)
    if options.simplify_loops:
        ordered = group.is_scatter or any(keeps_order(m.node.kind) for m in group.members)
        accesses = list(dict.fromkeys(_accesses(group, stored, buffers)))
        loops = simplify_loops(group.outer, group.inner, accesses, ordered)
    return canonical(loops, keep_inner=group.is_reduction)


def _accesses(
    group: Group, stored: Sequence[str], buffers: dict[str, Buffer]
) -> Iterable[AccessCost]:
    for name in stored:
        buffer, at = buffers[name], group.writes[name]
        if at is not None:
            yield AccessCost(buffer.layout.linear(at), buffer_bytes(buffer), name)
    for member in group.members:
        mapping = member.mapping
        if member.node.scatter is not None:
            buffer = buffers[member.node.name]
            known = _moved_plain(member.node.scatter.index, mapping)
            yield AccessCost(buffer.layout.linear(known), buffer_bytes(buffer), buffer.name)
        for value in post_order(member.node.roots):
            if isinstance(value, IndexValue):
                yield AccessCost(move(value.expr, mapping), 0)
            elif isinstance(value, Load) and value.buffer not in group.writes:
                buffer = buffers[value.buffer]
                offset = buffer.layout.linear(_moved_plain(value.index, mapping))
                yield AccessCost(offset, buffer_bytes(buffer), value.buffer)


def _moved_plain(index: Sequence[IndexExpr | Value], mapping: Substitution) -> list[IndexExpr]:
    """Coordinates in a group's variables, computed ones as 0."""
    return [move(at, mapping) if isinstance(at, IndexExpr) else as_index(0) for at in index]


def _moved_locals(
    index: Sequence[IndexExpr | Value], mapping: Substitution
) -> list[IndexExpr | Value]:
    """Coordinates in other variables; computed ones have names."""
    return [move(at, mapping) if isinstance(at, IndexExpr) else at for at in index]


def attention_kernel(
    body: Attention | Mixture, made: Sequence[str], buffers: dict[str, Buffer]
) -> BuiltKernel:
    """The kernel of an attention, or of a mixture, that is stored to the buffers `made`."""
    inner = body.summed if isinstance(body, Mixture) else (body.axis,)
    own: Substitution = {var: var.expr for var in (*body.ranges, *inner)}
    loops = canonical(Loops(body.ranges, inner, own), keep_inner=True)

    def moved(value: Value) -> Value:
        return rewrite(value, lambda _: None, lambda expr: move(expr, loops.values))

    spans = tuple(
        Load(load.buffer, _moved_plain(load.index, loops.values), load.dtype) for load in body.spans
    )
    statement: Attend | Mix
    if isinstance(body, Attention):
        first, *sums = made
        score = moved(body.score)
        statement = Attend(first, *body.refs, body.zeros, score, spans, tuple(sums))
    else:
        added = tuple(
            at and Load(name, _moved_locals(at.index, loops.values), at.dtype)
            for name, at in zip(made[len(body.values) :], body.sums, strict=True)
        )
        statement = Mix(tuple(made), body.factors, body.values, moved(body.weights), spans, added)
    return _with_positional_params([statement], loops, buffers)


@dataclass(slots=True)
class _Draft:
    """Statements over final loops, loads still naming the graph's buffers."""

    buffers: dict[str, Buffer]
    loops: Loops
    wide: frozenset[str]
    """What is not rounded."""
    computed: dict[str, Value]
    """The value of each buffer that the kernel computes."""
    statements: list[Statement]
    before: dict[str, Value] = field(default_factory=dict)
    """The values of `wide` before rounding, as f32."""
    reductions: dict[tuple[ReductionKind, Value], Value] = field(default_factory=dict)
    """The results of reductions so far, so that equal ones are computed once."""
    scans: dict[tuple[Value, Value], tuple[Local, ...]] = field(default_factory=dict)
    """What is carried along rows so far, so that equal scans are one."""
    sorts: dict[tuple[Value, int | None], tuple[Local, ...]] = field(default_factory=dict)
    """The rows that are sorted so far."""

    def add(self, member: Member, stored: bool) -> None:
        """Append what computes and stores this member."""
        node = member.node
        mapping = {var: move(value, self.loops.values) for var, value in member.mapping.items()}
        value = self._over_loops(node.value, mapping)
        if node.scatter is not None:
            self._scatter(node, node.scatter, mapping, value)
            return
        if isinstance(node.kind, ScanKind):
            value = self._scanned(node, node.kind, value)
        elif isinstance(node.kind, SortKind):
            value = self._sorted(node, node.kind, value)
        elif node.kind is not None:
            if member.first is not None:
                value = at_first_points(value, node.kind, self.loops.inner, member.first)
            key = (node.kind, value)
            if key not in self.reductions:
                self.statements.append(Reduce(node.name, node.kind, value))
                result = node.kind.result_dtype(value.dtype)
                self.reductions[key] = Local(node.name, result)
            value = self.reductions[key]
        self.computed[node.name] = value
        if node.name in self.wide:
            self.before[node.name] = self._over_loops(widened(node.value), mapping)
        if stored:
            index = tuple(move(at, self.loops.values) for at in member.coordinates)
            along = isinstance(node.kind, AlongRow)
            whole = along or (node.kind is None and self._is_inner(member))
            domain = Domain.INNER if whole else Domain.OUTER
            first = node.kind.first if isinstance(node.kind, SortKind) else member.first
            first = first if whole else None
            self.statements.append(Store(node.name, index, domain, value, first=first))

    def _scanned(self, node: Node, kind: ScanKind, value: Value) -> Value:
        """The result of a scan of `value` at each inner point."""
        parts = components(value)
        key = (value, kind.combine)
        if key not in self.scans:
            names = tuple(f"{node.name}@{number}" for number in range(len(parts)))
            statement = Accumulate(names, value, kind.combine)
            self.statements.append(statement)
            self.scans[key] = statement.locals
        states = dict(zip(carried("a", [p.dtype for p in parts]), self.scans[key], strict=True))
        return rewrite(
            kind.result,
            lambda part: states.get(part) if isinstance(part, Local) else None,
            lambda expr: expr,
        )

    def _sorted(self, node: Node, kind: SortKind, value: Value) -> Value:
        """The result of sorting `value` at each inner point."""
        key = (value, kind.first)
        if key not in self.sorts:
            names = tuple(f"{node.name}@{number}" for number in range(len(components(value))))
            statement = Sort(names, value, kind.first)
            self.statements.append(statement)
            self.sorts[key] = statement.locals
        words = dict(zip(sorted_words(value), self.sorts[key], strict=True))
        return rewrite(
            kind.result,
            lambda part: words.get(part) if isinstance(part, Local) else None,
            lambda expr: expr,
        )

    def _scatter(self, node: Node, scatter: Scatter, mapping: Substitution, value: Value) -> None:
        """Append what writes at computed places, its coordinates named first."""
        domain = Domain.INNER if self.loops.inner else Domain.OUTER
        index: list[IndexExpr | Local] = []
        for axis, at in enumerate(scatter.index):
            if isinstance(at, Value):
                name = f"{node.name}.{axis}"
                found = self._over_loops(at, mapping)
                self.statements.append(Let(name, domain, found))
                index.append(Local(name, found.dtype))
            else:
                index.append(move(at, mapping))
        self.statements.append(Store(node.name, tuple(index), domain, value, scatter.kind))

    def _over_loops(self, value: Value, mapping: Substitution) -> Value:
        """A node's value over the kernel's loops, with what the kernel computes in place."""
        return rewrite(unrounded(value, self.before), self._fused, lambda expr: move(expr, mapping))

    def _fused(self, value: Value) -> Value | None:
        if not isinstance(value, Load):
            return None
        known = self.computed.get(value.buffer)
        if known is not None and known.dtype is not value.dtype:
            return self.before[value.buffer]
        return known

    def _is_inner(self, member: Member) -> bool:
        """Whether a pointwise member runs over the inner domain."""
        inner = {var for var in self.loops.inner if var.expr.terms}
        if not inner:
            return False
        used = {atom for value in member.values for atom in atoms(move(value, self.loops.values))}
        return bool(inner & used)


def _with_positional_params(
    statements: Sequence[Statement], loops: Loops, buffers: dict[str, Buffer]
) -> BuiltKernel:
    """Name parameters p0, p1, ... in order of first use."""
    order: dict[str, str] = {}
    written: dict[str, Access] = {}
    for statement in statements:
        if isinstance(statement, Attend | Mix):
            for name in (*(ref.buffer for ref in statement.refs), *statement.made):
                order.setdefault(name, f"p{len(order)}")
            written |= dict.fromkeys(statement.made, Access.WRITE)
        if isinstance(statement, Mix):
            combined = [name for name, place in statement.added if place is not None]
            written |= dict.fromkeys(combined, Access.READ_WRITE)
        read = statement.spans if isinstance(statement, Attend | Mix) else ()
        for load in loads_of([statement.value, *read]):
            order.setdefault(load.buffer, f"p{len(order)}")
        if isinstance(statement, Store):
            order.setdefault(statement.param, f"p{len(order)}")
            written[statement.param] = Access.WRITE if statement.kind is None else Access.READ_WRITE
    params = tuple(
        Param(
            name,
            buffers[buffer].dtype,
            buffers[buffer].layout,
            written.get(buffer, Access.READ),
        )
        for buffer, name in order.items()
    )
    renamed = tuple(_rename_params(statement, order) for statement in statements)
    symbols = _symbols(params, loops, renamed)
    kernel = Kernel("", params, tuple(s.name for s in symbols), loops.outer, loops.inner, renamed)
    return BuiltKernel(kernel, tuple(order), tuple(s.expr for s in symbols))


def _rename_params(statement: Statement, order: dict[str, str]) -> Statement:
    def leaf(value: Value) -> Value | None:
        if isinstance(value, Load):
            return Load(order[value.buffer], value.index, value.dtype)
        return None

    value = rewrite(statement.value, leaf, lambda expr: expr)
    if isinstance(statement, Store):
        return replace(statement, param=order[statement.param], value=value)
    if isinstance(statement, Attend | Mix):
        return statement.renamed(order, value)
    return replace(statement, value=value)


def _symbols(params: Sequence[Param], loops: Loops, statements: Sequence[Statement]) -> list[Sym]:
    """The sizes that the kernel needs, by name."""
    found: dict[str, Sym] = {}

    def visit(exprs: Iterable[IndexExpr]) -> None:
        for expr in exprs:
            for atom in atoms(expr):
                if isinstance(atom, Sym):
                    found[atom.name] = atom
                elif isinstance(atom, Var):
                    visit([atom.extent])

    for param in params:
        visit([*param.layout.size, *param.layout.stride, param.layout.offset])
    visit(var.extent for var in loops.outer + loops.inner)
    for statement in statements:
        visit(expressions_in(statement.value))
        if isinstance(statement, Store):
            visit(statement.plain_index)
        if isinstance(statement, Mix):
            places = (at for load in statement.sums if load is not None for at in load.index)
            visit(at for at in places if isinstance(at, IndexExpr))
        if isinstance(statement, Attend | Mix):
            for view in (ref.view for ref in statement.refs if ref.view is not None):
                visit([*view.size, *view.stride, view.offset])
    return [found[name] for name in sorted(found)]


def kernel_name(kernel: Kernel, text: str) -> str:
    """A readable stem from what the kernel computes, and a hash of `text`."""
    words: list[str] = []
    for statement in kernel.statements:
        for value in post_order([statement.value]):
            if isinstance(value, Op) and value.name not in _PLAIN:
                words.append(value.name)
        if isinstance(statement, Attend):
            words.insert(0, "attention")
        elif isinstance(statement, Mix):
            words.insert(0, "mixture")
        elif isinstance(statement, Reduce):
            words.append(statement.kind.value)
        elif isinstance(statement, Sort):
            words.insert(0, "sort" if statement.first is None else "topk")
        elif isinstance(statement, Accumulate):
            words.append("scan")
            words += [v.name for v in post_order([statement.combine]) if isinstance(v, Op)]
        elif isinstance(statement, Store) and statement.kind is not None:
            words.append(f"scatter_{statement.kind.value}")
    stem = "_".join(list(dict.fromkeys(words))[:5]) or _plain_stem(kernel)
    return f"{re.sub(r'[^a-z0-9_]', '', stem)}_{sha256(text.encode()).hexdigest()[:8]}"


_PLAIN: frozenset[str] = frozenset(("add", "sub", "mul", "to", "neg", "where", "square"))


def _plain_stem(kernel: Kernel) -> str:
    """For kernels that do no more than add, multiply and move."""
    words = [
        value.name
        for statement in kernel.statements
        for value in post_order([statement.value])
        if isinstance(value, Op)
    ]
    return "_".join(list(dict.fromkeys(words))[:4]) or "copy"
