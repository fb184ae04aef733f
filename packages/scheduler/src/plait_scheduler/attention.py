"""Attention: two products, between which rows become their softmax, as one kernel.

The product of queries and keys has as many elements as there are pairs of these, and is read
where a softmax is computed of it, which another product takes. One kernel that goes over keys block
by block keeps none of that in memory. Whatever is computed of the scores before the softmax, point
by point, becomes part of it: biases, masks, functions of positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from plait_ir_lowering import (
    SCORE,
    Attention,
    Buffer,
    CheckedIndex,
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
from plait_scheduler.attention_masks import (
    in_bounds,
    key_limits,
    may_fail,
    spans_of,
    without_masks,
)
from plait_scheduler.attention_operands import Operands
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.domains import Substitution, move, points, position
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.prune import prune
from plait_scheduler.sizes import buffer_bytes, estimate
from plait_utils import dataclass

_PRODUCT = "aten::bmm"
_COMPUTED = (DType.f32, DType.f64)
_DEVICES = ("cpu", "cuda")
"""What there are kernels for."""
_FEWEST_ROWS = 8
"""With fewer queries a product of matrices is one of vectors, which is read once."""
_FEWEST_KEYS = 256
"""With fewer keys there are no blocks of them worth finding out."""


def fuse_attention(graph: Graph, options: SchedulerOptions, log: DecisionLog) -> Graph:
    """`graph` with attention in kernels of its own."""
    if not options.fuse_attention or sum(map(_is_product, graph.definitions)) < 2:
        return graph
    buffers = {buffer.name: buffer for buffer in (*graph.inputs, *_made(graph))}
    makers = _Makers(
        {b.name: d for d in graph.definitions for b in d.buffers},
        buffers,
        options.attention_operands,
    )
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
        scores = match.scores
        obstacle = f"something else reads {scores.name}" if scores.name in left else None
        obstacle = obstacle or _obstacle(match, makers.buffers, options)
        reason = f"{scores.name} is read only for the softmax that weights it"
        both = (scores.name, graph.definitions[place].buffers[0].name)
        nbytes = 4 * buffer_bytes(scores)  # it and the weights, each written and read
        if not log.settle(DecisionKind.ATTENTION, both, obstacle, reason, nbytes):
            del changed[place]
    return _with_bodies(graph, changed, spans=options.attention_spans)


def _obstacle(
    match: _Match, buffers: Mapping[str, Buffer], options: SchedulerOptions
) -> str | None:
    """Why two products are better left as they are."""
    attention = match.attention
    if estimate(attention.ranges[-1].extent) < _FEWEST_ROWS:
        return "there are few rows"
    if match.scores.device.type != "cpu" and match.scores.dtype is not DType.f32:
        return f"GPUs have no kernel for scores of {match.scores.dtype}"
    if options.max_head_size < 0:
        return None
    for ref in (attention.queries, attention.values):
        size = (ref.view or buffers[ref.buffer].layout).size[-1]
        if not size.is_constant:
            return f"rows of {ref.buffer} have {size} elements, which only a call knows"
        if size.as_int() > options.max_head_size:
            return f"rows of {ref.buffer} have more than {options.max_head_size} elements"
    return None


def _with_bodies(graph: Graph, bodies: Mapping[int, Attention], *, spans: bool = False) -> Graph:
    """`graph` with other bodies for the definitions at these places, and what they need; with
    what finds the keys that their rows may see (`spans`)."""
    taken = {buffer.name for buffer in (*graph.inputs, *_made(graph))}
    definitions: list[Definition] = []
    for place, definition in enumerate(graph.definitions):
        if place in bodies:
            body = bodies[place]
            before, body = _with_spans(body, definition, taken) if spans else ([], body)
            definitions += [*before, replace(definition, body=body)]
        else:
            definitions.append(definition)
    return prune(replace(graph, definitions=tuple(definitions)))


def _made(graph: Graph) -> Iterator[Buffer]:
    return (buffer for definition in graph.definitions for buffer in definition.buffers)


def _with_spans(
    body: Attention, definition: Definition, taken: set[str]
) -> tuple[list[Definition], Attention]:
    """An attention, told which keys its rows may see where its masks' form does not say it, and
    what finds them. Not where a score that is left out could fail."""
    masks, _ = without_masks(body.score)
    known = all(key_limits(mask, body.ranges[-1], body.axis) is not None for mask in masks)
    few = estimate(body.axis.extent) < _FEWEST_KEYS
    if known or few or may_fail(body.score):
        return [], body
    mask = masks[0]
    for other in masks[1:]:
        mask = Op("logical_and", [mask, other])
    made, loads = spans_of(mask, body.ranges, body.axis, definition, taken)
    return made, replace(body, spans=loads)


def _is_product(definition: Definition) -> bool:
    body = definition.body
    known = all(buffer.device.type in _DEVICES for buffer in definition.buffers)
    return isinstance(body, ExternCall) and body.op == _PRODUCT and body.out_variant and known


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
    buffers: Mapping[str, Buffer]
    originals: bool
    """Whether attention reads what its operands are copies of."""

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
        if self.originals:
            operands = Operands(self.table, self.buffers)
            queries, keys = self.widened(operands, queries, keys)
            values = operands.original(values, widened=False)
        attention = Attention(tuple(ranges), axis, queries, keys, values, score, zeros)
        return _Match(scores, attention)

    def widened(
        self, operands: Operands, queries: TensorRef, keys: TensorRef
    ) -> tuple[TensorRef, TensorRef]:
        """What queries and keys are copies of: both of 16 bits, or neither."""
        found = [operands.original(ref, widened=True) for ref in (queries, keys)]
        if len({self.buffers[ref.buffer].dtype for ref in found}) > 1:
            found = [operands.original(ref, widened=False) for ref in (queries, keys)]
        return found[0], found[1]

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
            part = _plain(part)
            maker = self.table.get(part.buffer)
            if maker is None or not isinstance(maker.body, Pointwise):
                return part
            inside = _at(maker.body.ranges, part.index, maker.body.value)
            if inside is None:
                return part
            if self.originals and isinstance(inside, Load):
                return self.expanded(inside, row, axis)
            used = {atom for at in part.index if isinstance(at, IndexExpr) for atom in atoms(at)}
            if {row, axis} <= used or not loads_of([inside]):
                return self.expanded(inside, row, axis)
            return part

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


def _plain(load: Load) -> Load:
    """A load without checks of indices that certainly lie in their dimensions."""
    known = [in_bounds(at) if isinstance(at, CheckedIndex) else None for at in load.index]
    places = [at if place is None else place for at, place in zip(load.index, known, strict=True)]
    return Load(load.buffer, places, load.dtype)


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
