"""Attention: two products, between which rows become their softmax, as one kernel.

The product of queries and keys has as many elements as there are pairs of these, and is read
where a softmax is computed of it, which another product takes. One kernel that goes over keys block
by block keeps none of that in memory. Whatever is computed of the scores before the softmax, point
by point, becomes part of it: biases, masks, functions of positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from plait_ir_lowering import (
    SCORE,
    Attention,
    Buffer,
    Const,
    Definition,
    DType,
    ExternCall,
    Graph,
    IndexExpr,
    Load,
    Local,
    Masked,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    TensorRef,
    Value,
    Var,
    as_index,
    atoms,
    loads_of,
    rewrite,
)
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.domains import Substitution, move, points, position
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.prune import prune
from plait_scheduler.sizes import buffer_bytes, estimate
from plait_utils import dataclass

_PRODUCT = "aten::bmm"
_COMPUTED = (DType.f32, DType.f64)
_FEWEST_ROWS = 8
"""With fewer queries a product of matrices is one of vectors, which is read once."""


def fuse_attention(graph: Graph, options: SchedulerOptions, log: DecisionLog) -> Graph:
    """`graph` with attention in kernels of its own."""
    if not options.fuse_attention or sum(map(_is_product, graph.definitions)) < 2:
        return graph
    makers = _Makers({b.name: d for d in graph.definitions for b in d.buffers})
    found = {
        place: match
        for place, definition in enumerate(graph.definitions)
        if (match := makers.attention(definition)) is not None
    }
    if not found:
        return graph
    changed = {place: match.attention for place, match in found.items()}
    left = {b.name for d in _with_bodies(graph, changed).definitions for b in d.buffers}
    for place, match in found.items():
        scores, rows = match.scores, match.attention.ranges[-1].extent
        obstacle = f"something else reads {scores.name}" if scores.name in left else None
        if estimate(rows) < _FEWEST_ROWS:
            obstacle = "there are few rows"
        reason = f"{scores.name} is read only for the softmax that weights it"
        both = (scores.name, graph.definitions[place].buffers[0].name)
        nbytes = 4 * buffer_bytes(scores)  # it and the weights, each written and read
        if not log.settle(DecisionKind.ATTENTION, both, obstacle, reason, nbytes):
            del changed[place]
    return _with_bodies(graph, changed)


def _with_bodies(graph: Graph, bodies: Mapping[int, Attention]) -> Graph:
    """`graph` with other bodies for the definitions at these places, and what they need."""
    definitions = [
        replace(definition, body=bodies[place]) if place in bodies else definition
        for place, definition in enumerate(graph.definitions)
    ]
    return prune(replace(graph, definitions=tuple(definitions)))


def _is_product(definition: Definition) -> bool:
    body = definition.body
    on_cpu = all(buffer.device.type == "cpu" for buffer in definition.buffers)
    return isinstance(body, ExternCall) and body.op == _PRODUCT and body.out_variant and on_cpu


@dataclass(frozen=True, slots=True)
class _Softmax:
    """What a row's softmax is made of, each at the points of the row."""

    score: Value
    maximum: Load
    total: Load
    exponential: Value
    is_empty: Load | None
    """Whether all scores are -inf, where that gives zeros."""


@dataclass(frozen=True, slots=True)
class _Match:
    """An attention, and the buffer of scores that it takes the place of."""

    scores: Buffer
    attention: Attention


def _is_whole(ref: object, size: tuple[IndexExpr, ...], buffer: Buffer) -> bool:
    """Whether a tensor is a dense buffer, all of it, as batches of matrices of this size."""
    if not isinstance(ref, TensorRef) or ref.dtype is not None or not buffer.layout.is_row_major:
        return False
    layout = buffer.layout if ref.view is None else ref.view
    return layout.size == size and layout.is_row_major and layout.offset is as_index(0)


@dataclass(frozen=True, slots=True)
class _Makers:
    """What defines each buffer, and what attention is made of."""

    table: Mapping[str, Definition]

    def attention(self, definition: Definition) -> _Match | None:
        """The attention whose last step a definition is."""
        body = definition.body
        if not _is_product(definition) or not isinstance(body, ExternCall):
            return None
        weights, values = body.args
        maker = self.table.get(weights.buffer) if isinstance(weights, TensorRef) else None
        if maker is None or not isinstance(maker.body, Pointwise) or len(maker.body.ranges) < 2:
            return None
        (buffer,) = maker.buffers
        *ranges, axis = maker.body.ranges
        batches, row = ranges[:-1], ranges[-1]
        if not _is_whole(weights, (points(batches), row.extent, axis.extent), buffer):
            return None
        batch = position([var.expr for var in batches], [var.extent for var in batches])
        softmax = self.softmax(maker.body, row, axis)
        place = (batch, row.expr, axis.expr)
        product = None if softmax is None else self.product(softmax.score, place)
        if softmax is None or product is None or not isinstance(values, TensorRef):
            return None
        scores, queries, keys = product
        score = _over_local(softmax.score, Load(scores.name, place, scores.dtype))
        if score is None:
            return None
        zeros = softmax.is_empty is not None
        attention = Attention(tuple(ranges), axis, queries, keys, values, score, zeros)
        return _Match(scores, attention)

    def softmax(self, weights: Pointwise, row: Var, axis: Var) -> _Softmax | None:
        """The softmax along `axis` that weights are."""
        value = self.expanded(weights.value, row, axis)
        if isinstance(value, Op) and value.name == "to" and value.dtype.is_reduced_precision:
            (value,) = value.args  # rounds weights before they are multiplied
        is_empty: Load | None = None
        match value:
            case Op("where", (Load() as is_empty, Const(0), value)):
                pass
            case Masked(Load() as is_empty, Const(0), value):
                pass
        match value:
            case Op(
                "div", (Op("exp", (Op("sub", (score, Load() as top)),)) as raised, Load() as s)
            ):
                found = _Softmax(score, top, s, raised, is_empty)
            case _:
                return None
        nothing = Op("eq", [found.score, Const(-math.inf, found.score.dtype)])
        wanted = [
            (found.maximum, ReductionKind.MAX, found.score),
            (found.total, ReductionKind.SUM, found.exponential),
            *([] if is_empty is None else [(is_empty, ReductionKind.ALL, nothing)]),
        ]
        right = all(self.reduced(load, kind, axis, row) is part for load, kind, part in wanted)
        return found if right else None

    def reduced(self, load: Load, kind: ReductionKind, axis: Var, row: Var) -> Value | None:
        """What a row of a reduction of this kind combines, at the points of `axis`."""
        maker = self.table.get(load.buffer)
        if maker is None or not isinstance(maker.body, Reduction) or maker.body.kind is not kind:
            return None
        body = maker.body
        if len(body.reduction_ranges) != 1 or body.reduction_ranges[0].extent is not axis.extent:
            return None
        moved = _at((*body.ranges, *body.reduction_ranges), (*load.index, axis.expr), body.value)
        return None if moved is None else self.expanded(moved, row, axis)

    def expanded(self, value: Value, row: Var, axis: Var) -> Value:
        """`value` with what differs from pair to pair computed in it, rather than read."""

        def leaf(part: Value) -> Value | None:
            if not isinstance(part, Load):
                return None
            maker = self.table.get(part.buffer)
            if maker is None or not isinstance(maker.body, Pointwise):
                return None
            inside = _at(maker.body.ranges, part.index, maker.body.value)
            if inside is None:
                return None
            used = {atom for at in part.index if isinstance(at, IndexExpr) for atom in atoms(at)}
            if {row, axis} <= used or not loads_of([inside]):
                return self.expanded(inside, row, axis)
            return None

        return rewrite(value, leaf, lambda expr: expr)

    def product(
        self, score: Value, place: tuple[IndexExpr, ...]
    ) -> tuple[Buffer, TensorRef, TensorRef] | None:
        """The product that a score is computed of, read at `place`, and its operands."""
        for load in loads_of([score]):
            maker = self.table.get(load.buffer)
            if load.index != place or maker is None or not _is_product(maker):
                continue
            (buffer,) = maker.buffers
            match maker.body:
                case ExternCall(_, _, (TensorRef() as queries, TensorRef() as keys)):
                    return (buffer, queries, keys) if buffer.dtype in _COMPUTED else None
        return None


def _over_local(score: Value, place: Load) -> Value | None:
    """A score over %score in place of a load; None where it reads others of that buffer."""
    local = Local(SCORE, place.dtype)
    found = rewrite(score, lambda value: local if value is place else None, lambda expr: expr)
    others = any(load.buffer == place.buffer for load in loads_of([found]))
    return None if others or found.dtype is not place.dtype else found


def _at(ranges: Sequence[Var], index: Sequence[IndexExpr | Value], value: Value) -> Value | None:
    """A definition's value at other coordinates; None where these are computed."""
    places: Substitution = {}
    for var, at in zip(ranges, index, strict=True):
        if not isinstance(at, IndexExpr):
            return None
        places[var] = at
    return rewrite(value, lambda _: None, lambda expr: move(expr, places))
