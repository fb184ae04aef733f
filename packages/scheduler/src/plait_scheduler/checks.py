"""Checks of data that no result would be computed with, kept as what they are: effects.

A value that may raise, as a read at an index that is out of range, does so where it is computed.
What nothing reads is not computed, nor is all of what only a part is read of, or what is read
under a mask: a slice of `x[i]` would raise for the indices in that slice alone. Eager computes
each operator whole. So of such a definition the checks become a reduction of their own, over the
points that they depend on, and calls that may raise stay: `Graph.checks` names both.

What has raised is told by eager, whose operators are called again in their order. Not so where some
are not torch's own, which are not called twice: there all that may raise stays before or behind
such a call, as in eager (`in_order`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import count
from types import MappingProxyType
from typing import TypeAlias

from plait_ir_lowering import (
    Atom,
    Buffer,
    CheckedIndex,
    Const,
    Definition,
    DType,
    ExternCall,
    Graph,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Masked,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    Scan,
    Scatter,
    Sort,
    Value,
    Var,
    as_index,
    atoms,
    bounds,
    post_order,
    product,
    rewrite,
    substitute,
)
from plait_scheduler.attention_masks import in_bounds
from plait_scheduler.domains import is_bijection, move, plain, points, position
from plait_scheduler.nodes import draws_random_numbers, final_reads, reads_of
from plait_scheduler.sizes import expressions_in
from plait_utils.data_errors import is_foreign, may_raise_for_data

_DIVISIONS = frozenset(("floordiv", "rem", "truncdiv", "fmod"))
_NONE = as_index(0)
_Span: TypeAlias = tuple[int, int]
"""From the first place on, up to the last one, exclusive."""


def keep_checks(graph: Graph) -> Graph:
    """`graph` with the checks that would be lost, where nothing or not all is read of a definition.

    What a definition reads is taken for read as a whole only where that is certain, so a check may
    be made once more.
    """
    if not any(map(raises, graph.definitions)):
        return graph
    known = _Evaluated(graph)
    for definition in reversed(graph.definitions):
        known.visit(definition)
    made = {_checks_of(each) for each in graph.definitions if known.is_whole(each)}
    kept = _Evaluated(graph)
    names = {b.name for d in graph.definitions for b in d.buffers} | {b.name for b in graph.inputs}
    definitions: list[Definition] = []
    checks: list[str] = []
    is_before = False
    for definition in reversed(graph.definitions):
        if calls_foreign(definition):
            is_before, made = True, set()  # what is checked behind it is not before it
        if raises(definition) and (is_before or not kept.is_whole(definition)):
            if isinstance(definition.body, ExternCall | Scatter):
                checks.append(definition.buffers[0].name)
                kept.need(checks[-1])
            else:
                value, domain = _checks_of(definition)
                if value is not None and (value, domain) not in made:
                    made.add((value, domain))
                    check = _check(definition, value, domain, names)
                    checks.append(check.buffers[0].name)
                    kept.need(checks[-1])
                    kept.visit(check)
                    definitions.append(check)
        kept.visit(definition)
        definitions.append(definition)
    if not checks:
        return graph
    return replace(
        graph,
        definitions=tuple(reversed(definitions)),
        checks=(*graph.checks, *reversed(checks)),
    )


def calls_foreign(definition: Definition) -> bool:
    """Whether a definition calls an operator that is not torch's own."""
    return isinstance(definition.body, ExternCall) and is_foreign(definition.body.op)


def in_order(definitions: Sequence[Definition]) -> Iterator[tuple[int, int]]:
    """The places of definitions of which the first one is to be computed before the second one: so
    that of all that may raise, calls of operators that are not torch's own are where they were."""
    last: int | None = None
    behind: list[int] = []
    for place, definition in enumerate(definitions):
        if calls_foreign(definition):
            yield from ((each, place) for each in behind)
            if last is not None:
                yield last, place
            last, behind = place, []
        elif raises(definition):
            if last is not None:
                yield last, place
            behind.append(place)


def raises(definition: Definition) -> bool:
    """Whether computing a definition may raise for what it reads, or do what nobody knows of."""
    body = definition.body
    if isinstance(body, ExternCall):
        integers = not any(buffer.dtype.is_float for buffer in definition.buffers)
        asked = body.args[-1:] == (True,)
        return may_raise_for_data(body.op, divides_integers=integers, checks_errors=asked)
    if isinstance(body, Pointwise | Reduction | Scan | Sort):
        return _may_raise(body.value)
    return isinstance(body, Scatter) and any(map(_may_raise, body.roots))


def divides(value: Value) -> bool:
    """Whether a value is an integer divided by what may be 0."""
    if not isinstance(value, Op) or value.name not in _DIVISIONS or value.dtype.is_float:
        return False
    divisor = value.args[1]
    return not (isinstance(divisor, Const) and divisor.value != 0)


def _may_raise(value: Value) -> bool:
    return any(map(_raises, post_order([value])))


def _raises(part: Value) -> bool:
    return divides(part) or (isinstance(part, CheckedIndex) and in_bounds(part) is None)


# What is computed whole.


class _Evaluated:
    """Which definitions are computed, and which of them at each of their points.

    Readers are to be visited before what they read.
    """

    def __init__(self, graph: Graph) -> None:
        self._needed = set(final_reads(graph))
        self._whole = set(self._needed)
        self._sizes = {b.name: b.layout.size for d in graph.definitions for b in d.buffers}

    def need(self, name: str) -> None:
        """A buffer is to be there."""
        self._needed.add(name)
        self._whole.add(name)

    def is_whole(self, definition: Definition) -> bool:
        """Whether a definition is computed at all of its points."""
        return any(buffer.name in self._whole for buffer in definition.buffers)

    def visit(self, definition: Definition) -> None:
        """What a definition reads is read."""
        body = definition.body
        if not any(b.name in self._needed for b in definition.buffers) and not draws_random_numbers(
            definition
        ):
            return
        self._needed.update(reads_of(definition))
        if isinstance(body, Pointwise | Reduction | Scan | Sort):
            if self.is_whole(definition):
                self._read(body.value, _domain_of(body))
            return
        if isinstance(body, Scatter):
            for root in body.roots:
                self._read(root, body.ranges)
            self._whole.add(body.target)
        else:  # calls and their kin take buffers as they lie in memory
            self._whole.update(reads_of(definition))
        self._whole.update(buffer.name for buffer in definition.buffers)

    def _read(self, value: Value, domain: Sequence[Var]) -> None:
        for load, spans in _loads(value):
            index, size = plain(load.index), self._sizes.get(load.buffer)
            if index is not None and size is not None and _covers(index, size, domain, spans):
                self._whole.add(load.buffer)


def _domain_of(body: Pointwise | Reduction | Scan | Sort) -> tuple[Var, ...]:
    return body.ranges + (body.reduction_ranges if isinstance(body, Reduction) else ())


def _covers(
    index: Sequence[IndexExpr],
    size: Sequence[IndexExpr],
    domain: Sequence[Var],
    spans: Mapping[Var, _Span],
) -> bool:
    """Whether a buffer is read at each of its points, from within spans of a domain."""
    read = {atom for expr in index for atom in atoms(expr)}
    moved: dict[Atom, IndexExpr] = {}
    used: list[Var] = []
    for var in domain:
        extent = var.extent
        if var in spans:
            if not extent.is_constant:
                return False
            first, last = max(spans[var][0], 0), min(spans[var][1], extent.as_int())
            extent = as_index(last - first)
        if (bounds(extent)[0] or 0) < 1:
            return False
        if var in read:
            used.append(Var(var.name, extent))
            moved[var] = used[-1].expr + (first if var in spans else 0)
    number = position([move(expr, moved) for expr in index], size)
    return points(used) is product(size) and is_bijection(number, used)


def _loads(root: Value) -> Iterator[tuple[Load, Mapping[Var, _Span]]]:
    """The loads of a value, each with the spans of variables in which it is read for certain."""
    waiting: list[tuple[Value, tuple[tuple[Var, _Span], ...], tuple[tuple[Var, _Span], ...]]]
    waiting = [(root, (), ())]
    seen = set(waiting)
    while waiting:
        value, inside, outside = waiting.pop()
        parts = [(part, inside, outside) for part in value.operands]
        if isinstance(value, Load):
            spans = _intersection(inside)
            if all(var in spans and _are_apart(spans[var], span) for var, span in outside):
                yield value, spans
        elif isinstance(value, Masked):
            span = _span_of(value.mask)
            parts = [(value.mask, inside, outside)]
            if span is not None:
                parts.append((value.value, (*inside, *span), outside))
                if len(_intersection(span)) == 1:
                    without = (*outside, *_intersection(span).items())
                    parts.append((value.other, inside, without))
        waiting += [each for each in parts if each not in seen]
        seen.update(parts)


def _intersection(spans: Sequence[tuple[Var, _Span]]) -> dict[Var, _Span]:
    found: dict[Var, _Span] = {}
    for var, (first, last) in spans:
        known = found.get(var, (first, last))
        found[var] = max(known[0], first), min(known[1], last)
    return found


def _are_apart(one: _Span, other: _Span) -> bool:
    return one[1] <= other[0] or other[1] <= one[0]


def _span_of(mask: Value) -> list[tuple[Var, _Span]] | None:
    """The spans of variables in which a mask holds; None for other masks."""
    if not isinstance(mask, Op):
        return None
    if mask.name == "logical_and":
        both = [_span_of(each) for each in mask.args]
        return None if None in both else [span for each in both for span in each or ()]
    if mask.name not in _COMPARED:
        return None
    compared, limit = mask.args
    if not isinstance(compared, IndexValue) or not isinstance(limit, Const):
        return None
    variables = [atom for atom in atoms(compared.expr) if isinstance(atom, Var)]
    if len(variables) != 1:
        return None
    rest = compared.expr - variables[0].expr
    if not rest.is_constant or not isinstance(limit.value, int):
        return None
    place = limit.value - rest.as_int()
    low, high = _COMPARED[mask.name]
    first = -_FAR if low is None else place + low
    return [(variables[0], (first, _FAR if high is None else place + high))]


_FAR = 1 << 62
_COMPARED: Mapping[str, tuple[int | None, int | None]] = MappingProxyType(
    {"ge": (0, None), "gt": (1, None), "lt": (None, 0), "le": (None, 1), "eq": (0, 1)}
)
"""From where on, and up to where, a comparison with a place holds, counted from that."""


# The checks alone.


def _checks_of(definition: Definition) -> tuple[Value | None, tuple[Var, ...]]:
    """A value for which all checks of a definition are made, over the points that they depend on;
    None where there are no checks, or no points."""
    body = definition.body
    if not isinstance(body, Pointwise | Reduction | Scan | Sort):
        return None, ()
    domain = _domain_of(body)
    value = _checks(body.value)
    if value is None or any(var.extent is _NONE for var in domain):
        return None, ()
    used = {atom for expr in expressions_in(value) for atom in atoms(expr)}
    kept = [var for var in domain if var in used or (bounds(var.extent)[0] or 0) < 1]
    named = {var: Var(f"r{number}", var.extent) for number, var in enumerate(kept)}
    moved: dict[Atom, IndexExpr] = {var: new.expr for var, new in named.items()}
    renamed = rewrite(value, lambda _: None, lambda expr: substitute(expr, moved))
    return renamed, tuple(named.values())


def _checks(root: Value) -> Value | None:
    """An i64 that is computed of all that may raise in a value."""
    done: dict[Value, Value | None] = {}
    for part in post_order([root]):
        found = [done[each] for each in part.operands]
        if divides(part):
            done[part] = part if part.dtype is DType.i64 else Op("to", [part], DType.i64)
        elif isinstance(part, CheckedIndex) and in_bounds(part) is None:
            done[part] = part
        elif isinstance(part, Masked):
            mask, value, other = found
            if value is not None or other is not None:
                value = Masked(part.mask, value or _ZERO, other or _ZERO)
            done[part] = _together([mask, value])
        else:
            done[part] = _together(found)
    return done[root]


_ZERO = Const(0, DType.i64)


def _together(values: Sequence[Value | None]) -> Value | None:
    known = list(dict.fromkeys(value for value in values if value is not None))
    if not known:
        return None
    return reduce(lambda one, other: Op("maximum", [one, other]), known)


def _check(
    definition: Definition, value: Value, domain: tuple[Var, ...], names: set[str]
) -> Definition:
    """A definition of one number for which the checks of another one are made."""
    first = definition.buffers[0]
    name = next(
        each for number in count() if (each := f"{first.name}_check{number or ''}") not in names
    )
    names.add(name)
    body: Pointwise | Reduction = Pointwise((), value)
    if domain:
        body = Reduction((), domain, ReductionKind.MAX, value)
    made = Buffer(name, DType.i64, first.device, Layout.of([]))
    return Definition((made,), body, definition.origin)
