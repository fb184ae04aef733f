"""Products of what is computed, pair by pair, of other products, as one kernel.

The gradients of an attention are such: its weights, and the gradients of its scores, are computed
of the scores and of another product, and multiplied with queries, keys and the result's gradients.
A kernel that goes over blocks of pairs computes their products again and keeps none of it in
memory. Mixtures of the same pairs become one, which computes these once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from plait_ir_lowering import (
    Buffer,
    Definition,
    DType,
    ExternCall,
    Graph,
    IndexExpr,
    Layout,
    Load,
    Local,
    Mixture,
    Op,
    Pointwise,
    TensorRef,
    Value,
    components,
    loads_of,
    packed,
    product_name,
    rewrite,
    score_dtype,
)
from plait_scheduler.attention import (
    Makers,
    in_order,
    is_product,
    is_whole,
    spans_for,
    too_long,
)
from plait_scheduler.attention_masks import shared_conditions
from plait_scheduler.attention_operands import Operands
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.domains import plain, points, position
from plait_scheduler.nodes import final_reads, reads_of
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.prune import prune
from plait_scheduler.sizes import buffer_bytes, estimate
from plait_utils import dataclass

_MOST_FACTORS = 2
_FEWEST_ROWS = 8
"""With fewer rows a product of matrices is one of vectors, which is read once."""


@dataclass(frozen=True, slots=True)
class _Match:
    """A mixture that takes the place of what is at `places`, the last of which is its own: of
    products, and of what rounds their results."""

    places: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    mixture: Mixture
    pairs: tuple[Buffer, ...]
    """What is left out: the products that weights are computed of, and the weights."""


def fuse_mixtures(graph: Graph, options: SchedulerOptions, log: DecisionLog) -> Graph:
    """`graph` with mixtures in kernels of their own."""
    if not options.fuse_mixtures or sum(map(is_product, graph.definitions)) < 2:
        return graph
    makers, rounding = Makers.of(graph, options), _rounding(graph)
    matches: list[_Match] = []
    for place, definition in enumerate(graph.definitions):
        match = _mixture(makers, rounding, place, definition)
        if match is None:
            continue
        obstacle = _obstacle(match.mixture, makers.buffers, options)
        if obstacle is None:
            matches.append(match)
        else:
            _settle(log, match, obstacle)
    found = _unread(graph, _merged(graph, matches), log)
    found = [match for match in found if _settle(log, match, None)]
    found = _unread(graph, found, log)  # fuel may have ended between those that share products
    return _with_mixtures(graph, found, spans=options.attention_spans)


def _settle(log: DecisionLog, match: _Match, obstacle: str | None) -> bool:
    both = (match.pairs[0].name, match.buffers[0].name)
    nbytes = 2 * sum(map(buffer_bytes, match.pairs))
    reason = f"{both[0]} is read only for weights that products take"
    return log.settle(DecisionKind.MIXTURE, both, obstacle, reason, nbytes)


def _unread(graph: Graph, found: list[_Match], log: DecisionLog) -> list[_Match]:
    """Those of some mixtures that together leave nothing in memory for each pair."""
    while found:
        changed = _with_mixtures(graph, found, spans=False)
        left = {b.name for d in changed.definitions for b in d.buffers}
        kept: list[_Match] = []
        for match in found:
            read = [b.name for b in match.pairs if b.name in left]
            if read:
                _settle(log, match, f"something else reads {read[0]}")
            else:
                kept.append(match)
        if len(kept) == len(found):
            break
        found = kept
    return found


def _obstacle(
    mixture: Mixture, buffers: Mapping[str, Buffer], options: SchedulerOptions
) -> str | None:
    """Why products are better left as they are."""
    if min(estimate(var.extent) for var in (mixture.ranges[-1], mixture.axis)) < _FEWEST_ROWS:
        return "there are few rows"
    firsts = [left for left, _ in mixture.factors]
    return too_long([*firsts, *mixture.values], buffers, options)


def _rounding(graph: Graph) -> Mapping[str, int]:
    """The places of definitions that do no more than round a buffer, which nothing else reads, by
    the buffer."""
    readers: dict[str, list[int]] = {name: [] for name in final_reads(graph)}
    buffers = {b.name: b for d in graph.definitions for b in d.buffers}
    for place, definition in enumerate(graph.definitions):
        for name in reads_of(definition):
            readers.setdefault(name, []).append(place)
    stored = set(final_reads(graph))
    return {
        name: places[0]
        for name, places in readers.items()
        if len(places) == 1
        and name in buffers
        and name not in stored
        and _rounds(graph.definitions[places[0]], buffers[name])
    }


def _rounds(definition: Definition, buffer: Buffer) -> bool:
    """Whether a definition is a dense buffer in 16 bits, as matrices of the same size."""
    made = definition.buffers[0]
    match definition.body:
        case Pointwise(ranges, Op("to", (Load(name, index),)) as value) if (
            name == buffer.name and value.dtype.is_reduced_precision
        ):
            at = plain(index)
        case _:
            return False
    dense = made.layout.is_row_major and buffer.layout.is_row_major
    if at is None or not dense or len(made.layout.size) < 3:
        return False
    same = made.layout.size[-2:] == buffer.layout.size[-2:]
    return same and buffer.layout.linear(at) is made.layout.linear([var.expr for var in ranges])


def _mixture(
    makers: Makers, rounding: Mapping[str, int], place: int, definition: Definition
) -> _Match | None:
    """The mixture of one buffer whose last step a definition is."""
    body = definition.body
    if not is_product(definition) or not isinstance(body, ExternCall):
        return None
    weights, values = body.args
    maker = makers.table.get(weights.buffer) if isinstance(weights, TensorRef) else None
    if maker is None or not isinstance(maker.body, Pointwise) or len(maker.body.ranges) < 2:
        return None
    assert isinstance(weights, TensorRef)
    (buffer,) = maker.buffers
    *batches, first, second = maker.body.ranges
    size = (points(batches), first.extent, second.extent)
    turned = not is_whole(weights, size, buffer)
    if turned and not is_whole(_turned(weights, buffer), size, buffer):
        return None
    row, axis = (second, first) if turned else (first, second)
    batch = position([var.expr for var in batches], [var.extent for var in batches])
    value = makers.expanded(maker.body.value, row, axis)
    products = list(_products(makers, value, (batch, first.expr, second.expr)))
    weight = _over_products(value, [load for load, _, _ in products])
    if weight is None or not products or not isinstance(values, TensorRef):
        return None
    factors: list[tuple[TensorRef, TensorRef]] = []
    for _, left, right in products:
        if turned:
            left, right = (_turned(ref, makers.buffers[ref.buffer]) for ref in (right, left))
        factors.append((left, right))
    if makers.originals:
        operands = Operands(makers.table, makers.buffers)
        factors = [makers.widened(operands, *pair) for pair in factors]
        # Weights of f32 may be rounded where their sums are rounded anyway.
        values = operands.original(values, widened=definition.buffers[0].name in rounding)
    mixture = Mixture((*batches, row), axis, tuple(factors), (values,), weight)
    pairs = tuple(makers.buffers[load.buffer] for load, _, _ in products)
    last = rounding.get(definition.buffers[0].name)
    places = (place,) if last is None else (place, last)
    made = definition if last is None else makers.definitions[last]
    return _Match(places, made.buffers, mixture, (*pairs, buffer))


def _turned(ref: TensorRef, buffer: Buffer) -> TensorRef:
    """The transposes of a batch of matrices."""
    layout = ref.view or buffer.layout
    size, stride = ((*part[:-2], part[-1], part[-2]) for part in (layout.size, layout.stride))
    return TensorRef(ref.buffer, Layout(size, stride, layout.offset), ref.dtype)


def _products(
    makers: Makers, value: Value, place: tuple[IndexExpr, ...]
) -> Iterator[tuple[Load, TensorRef, TensorRef]]:
    """The products that a weight is computed of, read at `place`, each with its factors."""
    for load in loads_of([value]):
        maker = makers.table.get(load.buffer)
        if load.index != place or maker is None or not is_product(maker):
            continue
        match maker.body:
            case ExternCall(_, _, (TensorRef() as left, TensorRef() as right)):
                if score_dtype(load.dtype) is DType.f32:
                    yield load, left, right


def _over_products(value: Value, loads: Sequence[Load]) -> Value | None:
    """A weight over %product0 and so on in place of loads, and not rounded at its root; None where
    it reads others of these buffers, or is no f32."""
    if isinstance(value, Op) and value.name == "to" and value.dtype.is_reduced_precision:
        (value,) = value.args
    known = {load: Local(product_name(number), DType.f32) for number, load in enumerate(loads)}

    def leaf(part: Value) -> Value | None:
        local = known.get(part) if isinstance(part, Load) else None
        if local is not None:
            return local if part.dtype is local.dtype else Op("to", [local], part.dtype)
        match part:  # what is widened was rounded only to be stored
            case Op("to", (Op("to", (Local() as local,)) as narrow,)) if (
                part.dtype is local.dtype and narrow.dtype.is_reduced_precision
            ):
                return local
        return None

    found = rewrite(value, leaf, lambda expr: expr)
    read = {load.buffer for load in loads}
    others = any(load.buffer in read for load in loads_of([found]))
    return None if others or found.dtype is not DType.f32 else found


def _merged(graph: Graph, matches: Sequence[_Match]) -> list[_Match]:
    """The mixtures, those of the same pairs as one where nothing between them needs one of them."""
    found: list[_Match] = []
    for match in matches:
        for place, other in enumerate(found):
            both = _both(other, match)
            if both is not None and _ordered(graph, [both]) is not None:
                found[place] = both
                break
        else:
            found.append(match)
    return found


def _both(one: _Match, other: _Match) -> _Match | None:
    """Two mixtures as one; None where they go over other pairs, or over too many products."""
    first, second = one.mixture, other.mixture
    if first.ranges != second.ranges or first.axis is not second.axis:
        return None
    factors = list(dict.fromkeys([*first.factors, *second.factors]))
    if len(factors) >= len(first.factors) + len(second.factors) or len(factors) > _MOST_FACTORS:
        return None
    weights = [
        weight
        for mixture in (first, second)
        for weight in _renumbered(mixture, [factors.index(pair) for pair in mixture.factors])
    ]
    values = (*first.values, *second.values)
    mixture = Mixture(first.ranges, first.axis, tuple(factors), values, packed(weights))
    places = tuple(sorted((*one.places, *other.places)))
    buffers = (*one.buffers, *other.buffers)
    pairs = tuple(dict.fromkeys([*one.pairs, *other.pairs]))
    return _Match(places, buffers, mixture, pairs)


def _renumbered(mixture: Mixture, numbers: Sequence[int]) -> Iterator[Value]:
    """The weights of a mixture over products of other numbers."""
    names = {product_name(old): product_name(new) for old, new in enumerate(numbers)}

    def leaf(part: Value) -> Value | None:
        return Local(names[part.name], part.dtype) if isinstance(part, Local) else None

    return (rewrite(weight, leaf, lambda expr: expr) for weight in components(mixture.weights))


def _with_mixtures(graph: Graph, found: Sequence[_Match], *, spans: bool) -> Graph:
    """`graph` with mixtures for products, and what they need; with what finds the places that
    their rows may see (`spans`)."""
    definitions = _ordered(graph, found, spans=spans)
    assert definitions is not None, "mixtures were merged one by one"
    return prune(replace(graph, definitions=definitions))


def _ordered(
    graph: Graph, found: Sequence[_Match], *, spans: bool = False
) -> tuple[Definition, ...] | None:
    """The definitions of a graph with mixtures for products; None where one would need itself."""
    taken = {b.name for b in graph.inputs} | {b.name for d in graph.definitions for b in d.buffers}
    last = {match.places[-1]: match for match in found}
    gone = {place for match in found for place in match.places[:-1]}
    definitions: list[Definition] = []
    for place, definition in enumerate(graph.definitions):
        match = last.get(place)
        if match is not None:
            body, before = match.mixture, list[Definition]()
            made = Definition(match.buffers, body, definition.origin)
            if spans:
                masks = shared_conditions(body.weights)
                before, told = spans_for(masks, body.weights, body, made, taken)
                made = replace(made, body=replace(body, spans=told))
            definitions += [*before, made]
        elif place not in gone:
            definitions.append(definition)
    return in_order(definitions)
