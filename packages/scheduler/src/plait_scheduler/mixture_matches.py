"""What a mixture takes the place of: a product of what is computed, pair by pair, of other
products, or a sum of that over pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plait_ir_lowering import (
    Buffer,
    CheckedIndex,
    Const,
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
    Reduction,
    ReductionKind,
    Scatter,
    ScatterKind,
    TensorRef,
    Value,
    Var,
    as_index,
    loads_of,
    packed,
    place_name,
    product_name,
    rewrite,
    score_dtype,
)
from plait_scheduler.attention_masks import in_bounds
from plait_scheduler.attention_operands import Operands
from plait_scheduler.domains import Substitution, move, plain, points, position
from plait_scheduler.makers import Makers
from plait_scheduler.nodes import final_reads, reads_of
from plait_scheduler.pair_products import is_product, is_whole
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Shared:
    """What sums a product over the last of its batches: definitions at `places`, into `buffer`."""

    places: tuple[int, ...]
    buffer: Buffer
    group: int
    """How many batches each sum is of."""


@dataclass(frozen=True, slots=True)
class Match:
    """A mixture that takes the place of what is at `places`, the last of which is its own: of
    products, of what rounds their results, and of sums."""

    places: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    mixture: Mixture
    pairs: tuple[Buffer, ...]
    """What is left out: the products that weights are computed of, and the weights."""
    shared: tuple[Shared | None, ...] = ()
    """For each buffer that has values: what sums it over batches, if anything does."""


@dataclass(frozen=True, slots=True)
class Followers:
    """What reads a buffer that nothing else reads, and finishes it."""

    definitions: tuple[Definition, ...]
    buffers: Mapping[str, Buffer]
    """All that are computed."""
    readers: Mapping[str, int]
    """The place of the only reader of each buffer that has one."""

    @classmethod
    def of(cls, graph: Graph) -> Followers:
        """Those of a graph."""
        stored = set(final_reads(graph))
        readers: dict[str, list[int]] = {}
        for place, definition in enumerate(graph.definitions):
            for name in reads_of(definition):
                readers.setdefault(name, []).append(place)
        only = {n: at[0] for n, at in readers.items() if len(at) == 1 and n not in stored}
        buffers = {b.name: b for d in graph.definitions for b in d.buffers}
        return cls(graph.definitions, buffers, only)

    def rounded(self, name: str) -> int | None:
        """Where a buffer is no more than rounded."""
        place = self.readers.get(name)
        if place is None or name not in self.buffers:
            return None
        return place if _rounds(self.definitions[place], self.buffers[name]) else None

    def shared(self, made: Buffer) -> Shared | None:
        """What sums a buffer over the last of its batches, and rounds that."""
        place = self.readers.get(made.name)
        group = None if place is None else _group(self.definitions[place], made)
        if place is None or group is None:
            return None
        (summed,) = self.definitions[place].buffers
        last = self.rounded(summed.name)
        if last is None:
            return Shared((place,), summed, group)
        return Shared((place, last), self.definitions[last].buffers[0], group)


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


def _group(definition: Definition, made: Buffer) -> int | None:
    """Of how many matrices in a row of `made` a definition gives the sums; None for others."""
    match definition.body:
        case Reduction(ranges, (along,), ReductionKind.SUM, value) if len(ranges) >= 3:
            pass
        case _:
            return None
    if isinstance(value, Op) and value.name == "to":
        (value,) = value.args
    if not isinstance(value, Load) or value.buffer != made.name or not along.extent.is_constant:
        return None
    at, (*batches, row, column) = plain(value.index), ranges
    size = made.layout.size[-2:]
    if at is None or not made.layout.is_row_major or size != (row.extent, column.extent):
        return None
    batch = position([var.expr for var in batches], [var.extent for var in batches])
    number = points(batches) * along.extent
    whole = Layout.of((number, *size))
    same = whole.linear([batch * along.extent + along.expr, row.expr, column.expr])
    fits = definition.buffers[0].layout.is_row_major and made.layout.numel is whole.numel
    return along.extent.as_int() if fits and made.layout.linear(at) is same else None


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of which something is computed: `batches` of a `first` and a `second`."""

    batches: tuple[Var, ...]
    first: Var
    second: Var
    turned: bool
    """Whether rows are the second of each."""

    @property
    def row(self) -> Var:
        return self.second if self.turned else self.first

    @property
    def axis(self) -> Var:
        return self.first if self.turned else self.second

    @property
    def ranges(self) -> tuple[Var, ...]:
        """Those of a mixture."""
        return (*self.batches, self.row)

    @property
    def place(self) -> tuple[IndexExpr, ...]:
        """Where products are read."""
        extents = [var.extent for var in self.batches]
        batch = position([var.expr for var in self.batches], extents)
        return (batch, self.first.expr, self.second.expr)

    def named(self) -> tuple[_Pairs, Substitution]:
        """The same over variables that all such pairs have, and the old ones in terms of them."""
        old = (*self.batches, self.first, self.second)
        new = [Var(f"i{number}", var.extent) for number, var in enumerate(old)]
        moved: Substitution = {
            var: to.expr for var, to in zip(old, new, strict=True) if var.expr.terms
        }
        return _Pairs(tuple(new[:-2]), new[-2], new[-1], self.turned), moved


def product_match(
    makers: Makers, followers: Followers, place: int, definition: Definition
) -> Match | None:
    """The mixture of one product, of which a definition is the last step."""
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
    pairs = _Pairs(tuple(batches), first, second, turned)
    found = _weighed(makers, pairs, maker.body.value)
    if found is None or not isinstance(values, TensorRef):
        return None
    weight, factors, products = found
    last = followers.rounded(definition.buffers[0].name)
    made = definition if last is None else makers.definitions[last]
    shared = followers.shared(made.buffers[0])
    if makers.originals:
        # Weights of f32 may be rounded where their sums are rounded anyway.
        ends = made.buffers[0] if shared is None else shared.buffer
        narrow = ends.dtype.is_reduced_precision
        values = Operands(makers.table, makers.buffers).original(values, widened=narrow)
    mixture = Mixture(pairs.ranges, pairs.axis, factors, (values,), weight)
    places = (place,) if last is None else (place, last)
    return Match(places, made.buffers, mixture, (*products, buffer), (shared,))


def sum_match(makers: Makers, place: int, definition: Definition) -> Match | None:
    """The mixture of a sum over pairs that a definition is."""
    if definition.buffers[0].dtype is not DType.f32:
        return None
    match definition.body:
        case Reduction(ranges, (axis,), ReductionKind.SUM, value):
            for pairs in _of_rows(ranges, axis):
                found = _row_sum(makers, pairs, value, place, definition)
                if found is not None:
                    return found
        case Scatter(ranges=(_, _, *_), kind=ScatterKind.ADD) as body:
            return _place_sum(makers, body, place, definition)
    return None


def _of_rows(ranges: Sequence[Var], axis: Var) -> Iterator[_Pairs]:
    """The pairs of which rows may be summed along an axis, of which a dimension may be left."""
    one = as_index(1)
    if len(ranges) > 1 and ranges[-1].extent is one:
        yield _Pairs(tuple(ranges[:-2]), ranges[-2], axis, turned=False)
    if len(ranges) > 1 and ranges[-2].extent is one:
        yield _Pairs(tuple(ranges[:-2]), axis, ranges[-1], turned=True)
    if ranges:
        yield _Pairs(tuple(ranges[:-1]), ranges[-1], axis, turned=False)
        yield _Pairs(tuple(ranges[:-1]), axis, ranges[-1], turned=True)


def _row_sum(
    makers: Makers, pairs: _Pairs, value: Value, place: int, definition: Definition
) -> Match | None:
    if not definition.buffers[0].layout.is_row_major:
        return None
    pairs, moved = pairs.named()
    found = _weighed(makers, pairs, rewrite(value, lambda _: None, lambda e: move(e, moved)))
    if found is None:
        return None
    weight, factors, products = found
    mixture = Mixture(pairs.ranges, pairs.axis, factors, (), weight, sums=(None,))
    return Match((place,), definition.buffers, mixture, products)


def _place_sum(makers: Makers, body: Scatter, place: int, definition: Definition) -> Match | None:
    """The mixture of what is added to zeros at computed places, one for each pair."""
    start = makers.table.get(body.target)
    if start is None or not isinstance(start.body, Pointwise):
        return None
    if makers.inlined(start.body.value) is not Const(0.0, DType.f32):
        return None
    *batches, first, second = body.ranges
    pairs, moved = _Pairs(tuple(batches), first, second, turned=False).named()

    def over(root: Value) -> Value:
        return rewrite(root, lambda _: None, lambda expr: move(expr, moved))

    found = _weighed(makers, pairs, over(body.value))
    if found is None:
        return None
    weight, factors, products = found
    index: list[IndexExpr | Value] = []
    computed: list[Value] = []
    for at in body.index:
        known = move(at, moved) if isinstance(at, IndexExpr) else None
        if isinstance(at, Value):
            value = makers.expanded(over(at), pairs.row, pairs.axis)
            known = in_bounds(value) if isinstance(value, CheckedIndex) else None
            if known is None:
                index.append(Local(place_name(len(computed)), value.dtype))
                computed.append(value)
                continue
        assert known is not None
        index.append(known)
    read = {load.buffer for load in loads_of(computed)}
    if not read.isdisjoint(buffer.name for buffer in products):
        return None
    at_pairs = Load(body.target, index, weight.dtype)
    weights = packed([weight, *computed])
    mixture = Mixture(pairs.ranges, pairs.axis, factors, (), weights, sums=(at_pairs,))
    return Match((place,), definition.buffers, mixture, products)


def _weighed(
    makers: Makers, pairs: _Pairs, value: Value
) -> tuple[Value, tuple[tuple[TensorRef, TensorRef], ...], tuple[Buffer, ...]] | None:
    """A value for each pair over products, with the factors of these and their buffers; None for
    one that is computed of none."""
    value = makers.expanded(value, pairs.row, pairs.axis)
    products = list(_products(makers, value, pairs.place))
    weight = _over_products(value, [load for load, _, _ in products])
    if weight is None or not products:
        return None
    factors: list[tuple[TensorRef, TensorRef]] = []
    for _, left, right in products:
        if pairs.turned:
            left, right = (_turned(ref, makers.buffers[ref.buffer]) for ref in (right, left))
        factors.append((left, right))
    if makers.originals:
        operands = Operands(makers.table, makers.buffers)
        factors = [makers.widened(operands, *pair) for pair in factors]
    return weight, tuple(factors), tuple(makers.buffers[load.buffer] for load, _, _ in products)


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
