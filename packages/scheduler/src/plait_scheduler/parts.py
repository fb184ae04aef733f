"""Products that write where they are concatenated.

A concatenation of matrix products copies each to its place. Where it is in memory anyway, the
products can write to their parts of it. In the graph it becomes a call of `aten::cat` whose
arguments lie in memory as parts of its result do; such arguments are stored there, and nothing is
left to call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import groupby

from plait_ir_lowering import (
    Atom,
    Attention,
    Buffer,
    Definition,
    ExternCall,
    ExternList,
    Graph,
    IndexExpr,
    Layout,
    Load,
    Masked,
    Mixture,
    Op,
    Pointwise,
    TensorRef,
    Value,
    Var,
    as_index,
    buffers_in,
    rewrite,
)
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.domains import move, normalise, plain, position
from plait_scheduler.nodes import final_reads, reads_of
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.pad import PRODUCTS, begin_well, gains_by_begins
from plait_scheduler.program import PartStorage
from plait_scheduler.regions import index_of
from plait_scheduler.sizes import buffer_bytes, collapsed, estimate, in_memory_order
from plait_utils import dataclass

_JOINED = ("aten::cat", "out")
_BATCHES = frozenset(("aten::bmm", "aten::baddbmm"))
_LEAST_IN_BATCH = 1 << 16
"""Of fewer elements matrices of a batch are one next to another: ATen multiplies others one by one.
On one core 64 of 16 by 16 take 170 us instead of 33, 8 of 64 by 64 158 instead of 143, and 8 of 256
by 256, of 16 products, 700 instead of 900."""


_FARTHEST = 256
"""So many definitions may lie between a product and what it is joined to, whose memory it needs
meanwhile."""


def join_products(graph: Graph, options: SchedulerOptions, log: DecisionLog) -> Graph:
    """`graph` with calls of `aten::cat` for concatenations that products write to.

    What else is concatenated is computed where it belongs, too. Only on the CPU: on an H100 two
    products of 2048 by 16 by 2048 take 62 us in place and 57 copied.
    """
    if not options.join_products or not any(map(_is_product, graph.definitions)):
        return graph
    joins = _Joins(graph, log)
    definitions = [each for d in graph.definitions for each in joins.joined(d)]
    if not joins.moved:
        return graph
    made = (
        replace(d, buffers=(joins.moved.get(d.buffers[0].name, d.buffers[0]), *d.buffers[1:]))
        for d in definitions
    )
    return replace(graph, definitions=tuple(made))


def parts_of(graph: Graph) -> dict[str, PartStorage]:
    """The arguments of calls of `aten::cat` that can be stored where it would copy them."""
    makers = {b.name: d for d in graph.definitions for b in d.buffers}
    reads = Counter(name for d in graph.definitions for name in reads_of(d))
    reads.update(final_reads(graph))
    found: dict[str, PartStorage] = {}
    for definition in graph.definitions:
        body = definition.body
        if not isinstance(body, ExternCall) or (body.op, body.overload) != _JOINED:
            continue
        parts = _stored_in(definition.buffers[0], body, makers)
        if parts is not None and all(reads[name] == 1 for name in parts):
            found |= parts
    return found


def _stored_in(
    whole: Buffer, call: ExternCall, makers: Mapping[str, Definition]
) -> dict[str, PartStorage] | None:
    """The arguments of a concatenation as parts of it; None where not all of them are."""
    items, axis = call.args
    if not isinstance(items, ExternList) or not isinstance(axis, int):
        return None
    if not in_memory_order(whole.layout).is_row_major or whole.layout.offset.terms:
        return None
    found: dict[str, PartStorage] = {}
    start = as_index(0)
    for ref in items.items:
        if not isinstance(ref, TensorRef) or ref.buffer in found or ref.dtype is not None:
            return None
        maker = makers.get(ref.buffer)
        if maker is None or not (isinstance(maker.body, Pointwise) or _is_product(maker)):
            return None
        (part,) = maker.buffers
        layout = ref.view or part.layout
        if (part.dtype, part.device) != (whole.dtype, whole.device) or layout.offset.terms:
            return None
        if layout.stride != whole.layout.stride or collapsed(layout) != collapsed(part.layout):
            return None
        found[part.name] = PartStorage(whole.name, start * layout.stride[axis])
        start = start + layout.size[axis]
    return found


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a concatenation is from one place of its axis to another."""

    whole: Buffer
    ranges: tuple[Var, ...]
    axis: int
    start: IndexExpr
    stop: IndexExpr
    mask: Value
    value: Value
    outside: Value
    """What is where no piece is: nowhere."""

    @property
    def layout(self) -> Layout:
        """Where it lies, from its own begin on."""
        size = list(self.whole.layout.size)
        size[self.axis] = self.stop - self.start
        return Layout.of(size, self.whole.layout.stride)

    @property
    def coordinates(self) -> list[IndexExpr]:
        """The point of the piece at each point of the whole."""
        found = [var.expr for var in self.ranges]
        is_one = self.stop - self.start is as_index(1)
        found[self.axis] = as_index(0) if is_one else found[self.axis] - self.start
        return found

    def strides_of(self, size: Sequence[IndexExpr]) -> list[IndexExpr] | None:
        """Strides of the same elements in dimensions of other sizes; None where there are none.

        The piece is bands, one in each period of the whole.
        """
        step = self.whole.layout.stride[self.axis]
        band, period = (self.stop - self.start) * step, self.whole.layout.size[self.axis] * step
        strides: list[IndexExpr] = []
        count, inside = as_index(1), True
        for extent in reversed(size):
            if inside and count is band and extent is not as_index(1):
                count, inside = period, False
            strides.insert(0, count)
            count = count * extent
        return strides if not inside or count is band else None


@dataclass(slots=True)
class _Joins:
    """Finds concatenations that are in memory anyway, and products among what they join."""

    graph: Graph
    log: DecisionLog
    moved: dict[str, Buffer] = field(default_factory=dict)
    """Products as they lie in what they are joined to."""
    makers: dict[str, Definition] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)
    stored: set[str] = field(default_factory=set)
    """What is handed out, or taken as it lies in memory."""
    names: set[str] = field(default_factory=set)
    places: dict[str, int] = field(default_factory=dict)
    """The place of the definition of each buffer."""

    def __post_init__(self) -> None:
        self.names |= {b.name for b in self.graph.inputs}
        self.reads.update(final_reads(self.graph))
        self.stored.update(self.reads)
        for place, definition in enumerate(self.graph.definitions):
            names = reads_of(definition)
            self.reads.update(names)
            if isinstance(definition.body, ExternCall | Attention | Mixture):
                self.stored.update(names)
            self.makers |= {b.name: definition for b in definition.buffers}
            self.places |= {b.name: place for b in definition.buffers}
        self.names |= self.makers.keys()
        # A kernel may compute these right in the inputs that they are written back to.
        self.stored -= {source.buffer for _, source in self.graph.mutations}

    def joined(self, definition: Definition) -> list[Definition]:
        """The definition; for one that products can write to, the call and what else it joins."""
        body, whole = definition.body, definition.buffers[0]
        if not isinstance(body, Pointwise) or whole.name not in self.stored:
            return [definition]
        if whole.device.type != "cpu" or whole.layout != Layout.of(whole.layout.size):
            return [definition]
        pieces = _pieces(whole, body)
        read = Counter(name for piece in pieces for name in buffers_in(piece.value))
        found = {
            place: product
            for place, piece in enumerate(pieces)
            if (product := self._product(piece)) is not None
            and read[product.name] == 1
            and self._is_chosen(piece, product)
        }
        if not found:
            return [definition]
        self.moved |= {product.name: product for product in found.values()}
        refs: list[TensorRef] = []
        others: list[Definition] = []
        for has_product, places in groupby(range(len(pieces)), found.__contains__):
            if has_product:
                refs += [TensorRef(found[at].name, pieces[at].layout) for at in places]
            else:
                others.append(self._computed(definition, [pieces[at] for at in places]))
                refs.append(TensorRef(others[-1].buffers[0].name))
        args = ExternList(tuple(refs)), pieces[0].axis
        call = ExternCall(*_JOINED, args, out_variant=True)
        return [*others, replace(definition, body=call)]

    def _product(self, piece: _Piece) -> Buffer | None:
        """The product that a piece is, as it lies in the whole; None where it is none."""
        load, whole = piece.value, piece.whole
        if not isinstance(load, Load) or self.reads[load.buffer] != 1:
            return None
        maker, index = self.makers.get(load.buffer), plain(load.index)
        if maker is None or not _is_product(maker) or index is None:
            return None
        (made,) = maker.buffers
        size = made.layout.size
        if (made.dtype, made.device) != (whole.dtype, whole.device):
            return None
        if made.layout != Layout.of(size) or made.layout.numel is not piece.layout.numel:
            return None
        if normalise(position(index, size)) is not normalise(
            position(piece.coordinates, piece.layout.size)
        ):
            return None
        strides = piece.strides_of(size)
        return None if strides is None else replace(made, layout=Layout.of(size, strides))

    def _is_chosen(self, piece: _Piece, product: Buffer) -> bool:
        """Whether a product is to write to its part of the whole."""
        both = (product.name, piece.whole.name)
        reason = f"{piece.whole.name} is in memory anyway"
        nbytes = 2 * buffer_bytes(product)
        return self.log.settle(
            DecisionKind.JOIN, both, self._obstacle(piece, product), reason, nbytes
        )

    def _obstacle(self, piece: _Piece, product: Buffer) -> str | None:
        """Why it is faster to copy a product."""
        size, strides = product.layout.size, product.layout.stride
        dense = Layout.of(size)
        begin = piece.start * piece.whole.layout.stride[piece.axis]
        if gains_by_begins(product) and not begin_well([begin, *strides[:-1]]):
            return "its rows would begin at no multiple of 32 bytes"
        body = self.makers[product.name].body
        assert isinstance(body, ExternCall)
        apart = body.op in _BATCHES and strides != dense.stride
        if apart and estimate(size[-2] * size[-1]) < _LEAST_IN_BATCH:
            return "its matrices are small, and would not lie side by side"
        return self._in_memory_meanwhile(product, piece.whole)

    def _in_memory_meanwhile(self, product: Buffer, whole: Buffer) -> str | None:
        """What would make the peak of memory higher: what is computed between a product and the
        whole, and larger than the whole."""
        between = self.graph.definitions[self.places[product.name] : self.places[whole.name]]
        if len(between) > _FARTHEST:
            return f"{whole.name} comes much later"
        limit = buffer_bytes(whole)
        for definition in between:
            is_call = isinstance(definition.body, ExternCall)
            for each in definition.buffers:
                if (is_call or each.name in self.stored) and buffer_bytes(each) > limit:
                    return f"{each.name}, which is larger than {whole.name}, comes between"
        return None

    def _computed(self, definition: Definition, pieces: Sequence[_Piece]) -> Definition:
        """What is no product, neighbours together, computed where it belongs."""
        first, axis = pieces[0], pieces[0].axis
        piece = replace(first, stop=pieces[-1].stop)
        value = first.value
        if len(pieces) > 1:
            value = first.outside
            for each in pieces:
                value = Masked(each.mask, each.value, value)
        old = piece.ranges[axis]
        new = Var(old.name, piece.stop - piece.start)
        moved: dict[Atom, IndexExpr] = {old: new.expr + piece.start}
        value = rewrite(value, lambda _: None, lambda expr: move(expr, moved))
        ranges = (*piece.ranges[:axis], new, *piece.ranges[axis + 1 :])
        name = f"{piece.whole.name}_part"
        while name in self.names:
            name += "_"
        self.names.add(name)
        buffer = replace(piece.whole, name=name, layout=piece.layout)
        return Definition((buffer,), Pointwise(ranges, value), definition.origin)


def _is_product(definition: Definition) -> bool:
    """Whether a matrix product is written to memory that it is given."""
    body = definition.body
    return isinstance(body, ExternCall) and body.op in PRODUCTS and body.out_variant


def _pieces(whole: Buffer, body: Pointwise) -> list[_Piece]:
    """What is concatenated, in order; nothing where the body is no concatenation."""
    found: dict[IndexExpr, tuple[int, IndexExpr, Masked]] = {}
    value = body.value
    while isinstance(value, Masked):
        within = _within(value.mask, body.ranges)
        if within is None:
            break
        axis, start, stop = within
        found[start] = axis, stop, value
        value = value.other
    pieces: list[_Piece] = []
    at = as_index(0)
    while at in found:
        axis, stop, part = found.pop(at)
        pieces.append(_Piece(whole, body.ranges, axis, at, stop, part.mask, part.value, value))
        at = stop
    axes = {piece.axis for piece in pieces}
    is_whole = len(axes) == 1 and not found and at is body.ranges[axes.pop()].extent
    return pieces if is_whole else []


def _within(mask: Value, ranges: Sequence[Var]) -> tuple[int, IndexExpr, IndexExpr] | None:
    """The axis whose places are from one place on and before another, and both."""
    if not isinstance(mask, Op) or mask.name != "logical_and":
        return None
    limits = []
    for condition, name in zip(mask.args, ("ge", "lt"), strict=True):
        if not isinstance(condition, Op) or condition.name != name:
            return None
        place, limit = map(index_of, condition.args)
        if place is None or limit is None:
            return None
        limits.append((place, limit))
    (at, start), (same, stop) = limits
    for axis, var in enumerate(ranges):
        if at is var.expr and same is at:
            return axis, start, stop
    return None
