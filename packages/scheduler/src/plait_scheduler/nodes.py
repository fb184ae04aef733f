"""Loop definitions as the scheduler sees them: domain, value, and what they access."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import torch

from plait_ir_lowering import (
    Attention,
    Buffer,
    Definition,
    ExternArg,
    ExternCall,
    ExternList,
    Graph,
    IndexExpr,
    IndexValue,
    Load,
    Mixture,
    Op,
    Origin,
    Pointwise,
    Reduction,
    ReductionKind,
    Scan,
    Scatter,
    Sort,
    TensorRef,
    Value,
    Var,
    atoms,
    buffers_in,
    evaluate,
    loads_of,
    post_order,
    rewrite,
)
from plait_scheduler.domains import is_affine, normalise, plain
from plait_scheduler.fold import fold
from plait_utils import dataclass

_EXPENSIVE_WORDS = """
    exp exp2 expm1 log log2 log10 log1p pow sin cos tan asin acos atan atan2 sinh cosh tanh
    asinh acosh atanh sigmoid erf erfc lgamma hypot philox
    box_muller_sin box_muller_cos approximate_log approximate_exp
"""
EXPENSIVE: frozenset[str] = frozenset(_EXPENSIVE_WORDS.split())
"""Operations that cost as much as tens of additions."""
MODERATE: frozenset[str] = frozenset(
    ("div", "sqrt", "rsqrt", "reciprocal", "floordiv", "truncdiv", "rem", "fmod")
)
"""Operations that cost as much as several additions."""


@dataclass(frozen=True, slots=True)
class ScanKind:
    """How a scan combines what it carries, and where its axis is among the buffer's dimensions."""

    combine: Value
    result: Value
    axis: int


@dataclass(frozen=True, slots=True)
class SortKind:
    """What a sort gives, of the first so many (None: all) along an axis of the buffer's."""

    result: Value
    axis: int
    first: int | None


AlongRow: TypeAlias = ScanKind | SortKind
"""What gives a value at each inner point, not one for all of them."""


@dataclass(frozen=True, slots=True)
class Node:
    """A pointwise definition, a reduction, a scan, a sort or a scatter, at its place in the graph.

    A scatter's `ranges` are the variables that are coordinates of its target themselves: points
    that differ there write to different places, so they may run in any order and at the same time.
    Its other variables are `reduced`, and run in order.
    """

    place: int
    buffer: Buffer
    ranges: tuple[Var, ...]
    reduced: tuple[Var, ...]
    """What a reduction combines over, or the axis of a scan or a sort; inner variables of a
    kernel."""
    kind: ReductionKind | AlongRow | None
    value: Value
    origin: Origin
    scatter: Scatter | None = None
    """Where a scatter writes, and how. Its value is the node's."""

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def is_pointwise(self) -> bool:
        return self.kind is None and self.scatter is None

    @property
    def roots(self) -> tuple[Value, ...]:
        """The values that are computed at each point."""
        return (self.value,) if self.scatter is None else self.scatter.roots

    @property
    def loads(self) -> list[Load]:
        return loads_of(self.roots)

    def rewritten(self, change: Callable[[Value], Value]) -> Node:
        """The node with each of its values changed."""
        if self.scatter is None:
            return replace(self, value=change(self.value))
        index = tuple(change(at) if isinstance(at, Value) else at for at in self.scatter.index)
        value = change(self.value)
        return replace(self, value=value, scatter=replace(self.scatter, index=index, value=value))


def node_of(place: int, definition: Definition) -> Node | None:
    """The node of a loop definition; None for a call, an attention or a mixture."""
    (buffer, *_) = definition.buffers
    match definition.body:
        case Pointwise(ranges, value):
            return Node(place, buffer, ranges, (), None, _normal(value), definition.origin)
        case Reduction(ranges, reduced, kind, value):
            found = _normal(value)
            return Node(place, buffer, ranges, reduced, kind, found, definition.origin)
        case Scan(ranges, axis, value, combine, result):
            scan = ScanKind(combine, result, ranges.index(axis))
            others = tuple(var for var in ranges if var is not axis)
            return Node(place, buffer, others, (axis,), scan, _normal(value), definition.origin)
        case Sort(ranges, axis, value, result):
            size = buffer.layout.size[ranges.index(axis)]
            first = None if size is axis.extent else size.as_int()
            sort = SortKind(result, ranges.index(axis), first)
            others = tuple(var for var in ranges if var is not axis)
            return Node(place, buffer, others, (axis,), sort, _normal(value), definition.origin)
        case Scatter():
            return _scatter_node(place, definition, definition.body)
    return None


def _scatter_node(place: int, definition: Definition, body: Scatter) -> Node:
    index = tuple(normalise(at) if isinstance(at, IndexExpr) else _normal(at) for at in body.index)
    body = replace(body, index=index, value=_normal(body.value))
    free = {var for var in body.ranges if any(at is var.expr for at in index)}
    ranges = tuple(var for var in body.ranges if var in free)
    ordered = tuple(var for var in body.ranges if var not in free)
    (buffer,) = definition.buffers
    return Node(place, buffer, ranges, ordered, None, body.value, definition.origin, body)


@lru_cache(1 << 13)
def _normal(value: Value) -> Value:
    """`value` with index expressions in their simplest form, and decided conditions folded."""
    if not any(_may_simplify(part) for part in post_order([value])):
        return value
    return rewrite(value, fold, normalise)


def _may_simplify(part: Value) -> bool:
    if isinstance(part, Load):
        return any(not is_affine(at) for at in plain(part.index) or ())
    return isinstance(part, IndexValue)


def keeps_order(kind: ReductionKind | AlongRow | None) -> bool:
    """Whether the order of the inner points matters: for positions, and along a scan or a sort."""
    return isinstance(kind, AlongRow) or kind in (ReductionKind.ARGMAX, ReductionKind.ARGMIN)


def body_of(node: Node) -> Pointwise | Reduction | Scan | Sort | Scatter:
    """The definition body that `node` stands for."""
    if node.scatter is not None:
        return node.scatter
    if node.kind is None:
        return Pointwise(node.ranges, node.value)
    if isinstance(node.kind, AlongRow):
        (axis,) = node.reduced
        place = node.kind.axis
        ranges = (*node.ranges[:place], axis, *node.ranges[place:])
        if isinstance(node.kind, SortKind):
            return Sort(ranges, axis, node.value, node.kind.result)
        return Scan(ranges, axis, node.value, node.kind.combine, node.kind.result)
    return Reduction(node.ranges, node.reduced, node.kind, node.value)


def tensor_refs(args: tuple[ExternArg, ...]) -> Iterator[TensorRef]:
    """The tensors among the arguments of an external call, lists included."""
    for arg in args:
        if isinstance(arg, TensorRef):
            yield arg
        elif isinstance(arg, ExternList):
            yield from tensor_refs(arg.items)


def reads_of(definition: Definition) -> list[str]:
    """The buffers that a definition reads, each once, in order of first use."""
    body = definition.body
    if isinstance(body, Pointwise | Reduction | Scan | Sort):
        return list(buffers_in(body.value))
    if isinstance(body, ExternCall):
        return list(dict.fromkeys(ref.buffer for ref in tensor_refs(body.args)))
    if isinstance(body, Attention | Mixture):
        value = body.score if isinstance(body, Attention) else body.weights
        loaded = [*buffers_in(value), *(load.buffer for load in body.spans)]
        loaded += body.targets if isinstance(body, Mixture) else ()
        return list(dict.fromkeys([*(ref.buffer for ref in body.refs), *loaded]))
    return list(dict.fromkeys([body.target, *(load.buffer for load in loads_of(body.roots))]))


def draws_random_numbers(definition: Definition) -> bool:
    """Whether carrying out `definition` advances the random number generator."""
    body = definition.body
    return isinstance(body, ExternCall) and is_random(body.op, body.overload)


@lru_cache(1024)
def is_random(op: str, overload: str) -> bool:
    """Whether an operator advances the random number generator."""
    namespace, _, name = op.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    found = getattr(packet, overload or "default", None)
    return found is not None and torch.Tag.nondeterministic_seeded in found.tags


def final_reads(graph: Graph) -> list[str]:
    """The buffers that are to be computed: those of results, and those that are checks."""
    return list(dict.fromkeys([*result_reads(graph), *graph.checks]))


def result_reads(graph: Graph) -> list[str]:
    """The buffers that outputs and mutations of `graph` read."""
    refs = [ref for ref in graph.outputs if isinstance(ref, TensorRef)]
    refs += [source for _, source in graph.mutations]
    return list(dict.fromkeys(ref.buffer for ref in refs))


def draws_apart(value: Value) -> bool:
    """Whether a value draws numbers of counters of which points far apart have one, so that a
    kernel of points alone computes it once for them, and one of rows for each."""
    draws = (part for part in post_order([value]) if isinstance(part, Op))
    return any(draw.name == "philox" and _is_apart(draw) for draw in draws)


def _is_apart(draw: Op) -> bool:
    """Whether neighbours are of threads beside each other, each of which draws several numbers."""
    _, counter, thread, lane = draw.args
    turns = [part.expr for part in post_order([counter, lane]) if isinstance(part, IndexValue)]
    if all(turn.is_constant for turn in turns) or not isinstance(thread, IndexValue):
        return False
    names = {atom.name: 0 for atom in atoms(thread.expr) if isinstance(atom, Var)}
    if len(names) < len(atoms(thread.expr)):
        return False
    first = evaluate(thread.expr, names)
    return any(evaluate(thread.expr, {**names, name: 1}) == first + 1 for name in names)


@dataclass(frozen=True, slots=True)
class Work:
    """How much one point of a value costs."""

    loads: int
    cheap: int
    moderate: int
    expensive: int

    @property
    def operations(self) -> int:
        return self.cheap + self.moderate + self.expensive


def work_of(value: Value) -> Work:
    """Count what computing `value` at one point takes, shared parts once."""
    loads = cheap = moderate = expensive = 0
    for part in post_order([value]):
        if isinstance(part, Load):
            loads += 1
        elif isinstance(part, Op) and part.name in EXPENSIVE:
            expensive += 1
        elif isinstance(part, Op) and part.name in MODERATE:
            moderate += 1
        elif part.operands:
            cheap += 1
    return Work(loads, cheap, moderate, expensive)
