"""Attention: two products, between which rows become their softmax, as one kernel.

The product of queries and keys has as many elements as there are pairs of these, and is read
where a softmax is computed of it, which another product takes. One kernel that goes over keys block
by block keeps none of that in memory. Whatever is computed of the scores before the softmax, point
by point, becomes part of it: biases, masks, functions of positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    Mixture,
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
from plait_scheduler.nodes import reads_of
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
    if not options.fuse_attention or sum(map(is_product, graph.definitions)) < 2:
        return graph
    makers = Makers.of(graph, options)
    found = {
        place: match
        for place, definition in enumerate(graph.definitions)
        if (match := makers.attention(definition)) is not None
    }
    if not found:
        return graph
    changed = dict(found)
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
    return too_long((attention.queries, attention.values), buffers, options)


def too_long(
    refs: Sequence[TensorRef], buffers: Mapping[str, Buffer], options: SchedulerOptions
) -> str | None:
    """Why rows of tensors are too long for a kernel, if they are."""
    if options.max_head_size < 0:
        return None
    for ref in refs:
        size = (ref.view or buffers[ref.buffer].layout).size[-1]
        if not size.is_constant:
            return f"rows of {ref.buffer} have {size} elements, which only a call knows"
        if size.as_int() > options.max_head_size:
            return f"rows of {ref.buffer} have more than {options.max_head_size} elements"
    return None


def _with_bodies(graph: Graph, found: Mapping[int, _Match], *, spans: bool = False) -> Graph:
    """`graph` with attentions for the definitions at these places, and what they need; with
    what finds the keys that their rows may see (`spans`)."""
    taken = {buffer.name for buffer in (*graph.inputs, *_made(graph))}
    given = {buffer for match in found.values() for buffer in match.sums}
    definitions: list[Definition] = []
    for place, definition in enumerate(graph.definitions):
        if place in found:
            match, body = found[place], found[place].attention
            made = (*definition.buffers, *match.sums)
            before: list[Definition] = []
            if spans:
                masks = without_masks(body.score)[0]
                before, found_spans = spans_for(masks, body.score, body, definition, taken)
                body = replace(body, spans=found_spans)
            definitions += [*before, Definition(made, body, definition.origin)]
        elif given.isdisjoint(definition.buffers):
            definitions.append(definition)
    return prune(replace(graph, definitions=in_order(definitions) or graph.definitions))


def in_order(definitions: Sequence[Definition]) -> tuple[Definition, ...] | None:
    """Definitions in their order, but for those that read what comes later, which follow it; None
    if there is no such order."""
    waiting = {b.name for definition in definitions for b in definition.buffers}
    found: list[Definition] = []
    late: list[Definition] = []
    for definition in definitions:
        late.append(definition)
        ready = True
        while ready:
            ready = False
            for each in late:
                if waiting.isdisjoint(reads_of(each)):
                    late.remove(each)
                    found.append(each)
                    waiting.difference_update(b.name for b in each.buffers)
                    ready = True
                    break
    return None if late else tuple(found)


def _made(graph: Graph) -> Iterator[Buffer]:
    return (buffer for definition in graph.definitions for buffer in definition.buffers)


def spans_for(
    masks: Sequence[Value],
    value: Value,
    body: Attention | Mixture,
    definition: Definition,
    taken: set[str],
) -> tuple[list[Definition], tuple[Load, ...]]:
    """What tells which keys the rows of an attention or a mixture may see, of what its masks leave,
    where their form does not say it, and what finds that. Not where `value`, which is left out
    elsewhere, could fail."""
    known = all(key_limits(mask, body.ranges[-1], body.axis) is not None for mask in masks)
    few = estimate(body.axis.extent) < _FEWEST_KEYS
    if known or few or may_fail(value):
        return [], ()
    mask = masks[0]
    for other in masks[1:]:
        mask = Op("logical_and", [mask, other])
    return spans_of(mask, body.ranges, body.axis, definition, taken)


def is_product(definition: Definition) -> bool:
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
    sums: tuple[Buffer, ...]
    """What gets the logarithms of the sums of the rows' exponentials, if anything does; or their
    largest scores, and the logarithms of the sums below these."""


def is_whole(ref: object, size: tuple[IndexExpr, ...], buffer: Buffer) -> bool:
    """Whether a tensor is a dense buffer, all of it, as batches of matrices of this size."""
    if not isinstance(ref, TensorRef) or ref.dtype is not None or not buffer.layout.is_row_major:
        return False
    layout = buffer.layout if ref.view is None else ref.view
    return layout.size == size and layout.is_row_major and layout.offset is as_index(0)


@dataclass(frozen=True, slots=True)
class Makers:
    """What defines each buffer, and what attention is made of."""

    definitions: tuple[Definition, ...]
    table: Mapping[str, Definition]
    buffers: Mapping[str, Buffer]
    originals: bool
    """Whether attention reads what its operands are copies of."""
    gives_sums: bool
    """Whether attention gives the logarithms of its rows' sums."""

    @classmethod
    def of(cls, graph: Graph, options: SchedulerOptions) -> Makers:
        """Those of a graph."""
        return cls(
            graph.definitions,
            {b.name: d for d in graph.definitions for b in d.buffers},
            {buffer.name: buffer for buffer in (*graph.inputs, *_made(graph))},
            options.attention_operands,
            options.attention_sums,
        )

    def attention(self, definition: Definition) -> _Match | None:
        """The attention whose last step a definition is."""
        body = definition.body
        if not is_product(definition) or not isinstance(body, ExternCall):
            return None
        weights, values = body.args
        maker = self.table.get(weights.buffer) if isinstance(weights, TensorRef) else None
        if maker is None or not isinstance(maker.body, Pointwise) or len(maker.body.ranges) < 2:
            return None
        (buffer,) = maker.buffers
        *ranges, axis = maker.body.ranges
        batches, row = ranges[:-1], ranges[-1]
        if not is_whole(weights, (points(batches), row.extent, axis.extent), buffer):
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
        sums = self.sums(softmax, ranges, axis) if self.gives_sums else ()
        return _Match(scores, attention, sums)

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

    def sums(self, softmax: _Softmax, ranges: Sequence[Var], axis: Var) -> tuple[Buffer, ...]:
        """What gets the logarithms of the sums of a softmax's rows, or the largest scores and the
        logarithms of the sums below them; nothing for nothing."""
        logarithms = self.of_rows(ranges, _may_be_logarithm)
        for buffer, value in logarithms:
            if self.is_sum(value, softmax, axis, ranges[-1]):
                return (buffer,)
        for sums, value in logarithms:
            top = self.is_sum_below(value, softmax, axis, ranges[-1])
            if top is None:
                continue
            if softmax.is_empty is None:
                most = self.buffers[top.buffer]
                return (most, sums) if most.layout.is_row_major else ()
            for most, other in self.of_rows(ranges, _may_be_largest):
                if self.is_largest(other, top, softmax, axis, ranges[-1]):
                    return most, sums
        return ()

    def of_rows(
        self, ranges: Sequence[Var], may_be: Callable[[Value], bool]
    ) -> list[tuple[Buffer, Value]]:
        """Dense buffers with an element for each row, with their values at %ranges."""
        rows = [var for var in ranges if var.expr.terms]
        found: list[tuple[Buffer, Value]] = []
        for name, definition in self.table.items():
            body, buffer = definition.body, self.buffers[name]
            if not isinstance(body, Pointwise) or not may_be(body.value):
                continue
            own = [var for var in body.ranges if var.expr.terms]
            sizes = [var.extent for var in own] == [var.extent for var in rows]
            if sizes and buffer.layout.is_row_major:
                places: Substitution = dict(zip(own, (var.expr for var in rows), strict=True))
                found.append((buffer, _moved(self.inlined(body.value), places)))
        return found

    def is_sum(self, value: Value, softmax: _Softmax, axis: Var, row: Var) -> bool:
        """Whether a value is the logarithm of the sum of the exponentials of a softmax's row."""
        is_empty, value = _chosen(value, math.inf)
        match value:
            case Op("add", (Op("log", (Load() as total,)), Load() as top)):
                return self.are_of(softmax, axis, row, is_empty, top, total)
        return False

    def is_sum_below(self, value: Value, softmax: _Softmax, axis: Var, row: Var) -> Load | None:
        """The largest score of a softmax's row, where a value is the logarithm of the sum of the
        exponentials below it."""
        is_empty, value = _chosen(value, math.inf)
        match value:
            case Op("log", (Load() as total,)):
                below = self.exponential(total, axis, row)
                if below is not None and self.are_of(softmax, axis, row, is_empty, below, total):
                    return below
        return None

    def is_largest(self, value: Value, top: Load, softmax: _Softmax, axis: Var, row: Var) -> bool:
        """Whether a value is the largest score of a row, and 0 where it has no keys."""
        is_empty, value = _chosen(value, 0.0)
        return value is top and self.is_of_empty(softmax, axis, row, is_empty)

    def exponential(self, total: Load, axis: Var, row: Var) -> Load | None:
        """What is subtracted from what a sum is of the exponentials of."""
        match self.reduced(total, ReductionKind.SUM, axis, row):
            case Op("exp", (Op("sub", (_, Load() as top)),)):
                return top
        return None

    def are_of(
        self, softmax: _Softmax, axis: Var, row: Var, is_empty: Load | None, top: Load, total: Load
    ) -> bool:
        """Whether these are, of a softmax's row, whether it is empty, the largest score, and the
        sum of the exponentials below that."""
        raised = Op("exp", [Op("sub", [softmax.score, top])])
        return (
            self.reduced(top, ReductionKind.MAX, axis, row) is softmax.score
            and self.reduced(total, ReductionKind.SUM, axis, row) is raised
            and self.is_of_empty(softmax, axis, row, is_empty)
        )

    def is_of_empty(self, softmax: _Softmax, axis: Var, row: Var, is_empty: Load | None) -> bool:
        """Whether it tells that a row is empty, as far as the softmax asks."""
        if is_empty is None or softmax.is_empty is None:
            return is_empty is softmax.is_empty
        nothing = Op("eq", [softmax.score, Const(-math.inf, softmax.score.dtype)])
        return self.reduced(is_empty, ReductionKind.ALL, axis, row) is nothing

    def inlined(self, value: Value) -> Value:
        """`value` with what is computed point by point computed in it."""

        def leaf(part: Value) -> Value | None:
            maker = self.table.get(part.buffer) if isinstance(part, Load) else None
            if maker is None or not isinstance(part, Load) or not isinstance(maker.body, Pointwise):
                return None
            inside = _at(maker.body.ranges, part.index, maker.body.value)
            return None if inside is None else self.inlined(inside)

        return rewrite(value, leaf, lambda expr: expr)

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
            if load.index != place or maker is None or not is_product(maker):
                continue
            (buffer,) = maker.buffers
            match maker.body:
                case ExternCall(_, _, (TensorRef() as queries, TensorRef() as keys)):
                    return (buffer, queries, keys) if buffer.dtype in _COMPUTED else None
        return None


def _may_be_logarithm(value: Value) -> bool:
    """Whether a value may be the logarithm of a sum, or more."""
    return isinstance(value, Op) and value.name in ("add", "log", "where") and value.dtype.is_float


def _may_be_largest(value: Value) -> bool:
    """Whether a value may be a number that is chosen for rows without keys, or else loaded."""
    return isinstance(value, Op) and value.name == "where" and value.dtype.is_float


def _chosen(value: Value, number: float) -> tuple[Load | None, Value]:
    """Where a number takes a value's place, if anywhere, and that value."""
    match value:
        case Op("where", (Load() as condition, Const(chosen), other)) if chosen == number:
            return condition, other
    return None, value


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
    return _moved(value, places)


def _moved(value: Value, places: Substitution) -> Value:
    """A value over other variables."""
    return rewrite(value, lambda _: None, lambda expr: move(expr, places))
