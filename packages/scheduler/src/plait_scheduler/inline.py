"""Recomputing cheap pointwise definitions where they are read.

A definition that is read at other coordinates than its own (broadcast, transposed,
sliced, concatenated) cannot share a kernel with its reader point by point; but its value
can be computed at the reader's coordinates instead of being stored. What is read point by
point is left to fusion, unless computing it is nothing beside reading what it is computed
of: readers that cannot share a kernel then read that, and nothing is stored between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from plait_ir_lowering import (
    Atom,
    Buffer,
    Definition,
    Graph,
    IndexExpr,
    IndexValue,
    Load,
    Masked,
    Op,
    Reduction,
    Value,
    Var,
    atoms,
    post_order,
    rewrite,
)
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.domains import as_variable, is_bijection, move, plain, points, position
from plait_scheduler.fold import fold
from plait_scheduler.nodes import (
    Node,
    SortKind,
    Work,
    body_of,
    final_reads,
    node_of,
    reads_of,
    work_of,
)
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.prune import prune
from plait_scheduler.sizes import buffer_bytes, estimate
from plait_scheduler.widening import unrounded, widened
from plait_utils import dataclass

_SMALL_REPEAT = 4096
"""So many expensive operations may be repeated whatever the ratio."""
_MODERATE_RATIO = 4
"""At how many times as many points divisions may be repeated."""
_MANY_READERS = 32
"""Of more, a definition is not considered again each time that one changes."""
_FEW_POINTS = 16
"""A reader of one in so many points computes them anew rather than have all of them stored."""
_THIN = 4
"""Most operations of what is rather computed anew than stored."""
_SLIGHT = 16
"""What has fewer bytes by this factor is nothing beside a producer."""
_BLOCK = 128
"""Rows or columns that a kernel which multiplies matrices takes at once."""
_IN_CACHE = 1 << 15
"""So many bytes stay in a core's cache, where storing them costs little."""


def inline_producers(
    graph: Graph,
    options: SchedulerOptions,
    log: DecisionLog,
    wide: frozenset[str] = frozenset(),
    sums: frozenset[str] = frozenset(),
) -> Graph:
    """`graph` with cheap producers recomputed in their readers, those in `wide` not rounded; `sums`
    are reductions that multiply matrices block by block."""
    if not options.inline_producers:
        return graph
    inliner = _Inliner(graph, options, log, wide, sums)
    for place in range(len(graph.definitions)):
        inliner.consider_chain(place)
    while inliner.postponed:
        inliner.consider_chain(inliner.postponed.popitem()[0])
    changed = replace(graph, definitions=tuple(inliner.definitions))
    return prune(changed)


@dataclass(frozen=True, slots=True)
class _Use:
    """One access of a reader to the producer."""

    reader: Node
    load: Load
    in_blocks: bool = False
    """Whether what is read for a row, or a column, serves a block of the others."""

    @property
    def points(self) -> IndexExpr:
        """At how many points the producer is computed."""
        domain = self.reader.ranges + self.reader.reduced
        if not self.in_blocks:
            return points(domain)
        used = _atoms_of(self.load)
        terms, loads = {*self.reader.reduced}, map(_atoms_of, self.reader.loads)
        read = frozenset[Atom]().union(*(each for each in loads if each & terms))  # of factors
        others = points([var for var in domain if var in read - used])
        return points([var for var in domain if var in used]) * ((others + _BLOCK - 1) // _BLOCK)


def _atoms_of(load: Load) -> frozenset[Atom]:
    return frozenset(atom for at in load.index if isinstance(at, IndexExpr) for atom in atoms(at))


@dataclass(slots=True)
class _Inliner:
    graph: Graph
    options: SchedulerOptions
    log: DecisionLog
    wide: frozenset[str]
    sums: frozenset[str]
    definitions: list[Definition] = field(init=False)
    nodes: list[Node | None] = field(init=False)
    buffers: dict[str, Buffer] = field(init=False)
    readers: dict[str, dict[int, None]] = field(init=False)
    reductions: set[str] = field(init=False)
    kept: frozenset[str] = field(init=False)
    producer: dict[str, int] = field(init=False)
    """The place of the definition of each buffer."""
    postponed: dict[int, None] = field(default_factory=dict)
    """Definitions with many readers, as layers are of one mask, that are to be considered again."""

    def __post_init__(self) -> None:
        self.definitions = list(self.graph.definitions)
        self.nodes = [node_of(place, d) for place, d in enumerate(self.definitions)]
        self.buffers = {b.name: b for b in self.graph.inputs}
        self.readers = {}
        self.producer = {}
        self.reductions = set()
        for place, definition in enumerate(self.definitions):
            for buffer in definition.buffers:
                self.buffers[buffer.name] = buffer
                self.producer[buffer.name] = place
                if isinstance(definition.body, Reduction):
                    self.reductions.add(buffer.name)
            for name in reads_of(definition):
                self.readers.setdefault(name, {})[place] = None
        self.kept = frozenset(final_reads(self.graph))

    def consider_chain(self, place: int) -> None:
        """Inline one definition into its readers, if that pays, and then what it reads, which
        is read at other coordinates now.

        What many read is considered again once, after all else: each time takes as long as there
        are readers.
        """
        waiting = [place]
        while waiting:
            place = waiting.pop()
            producer = self.nodes[place]
            if producer is not None and self.consider(place):
                names = dict.fromkeys(load.buffer for load in producer.loads)
                if producer.name not in self.kept and not self.readers[producer.name]:
                    for name in names:  # nobody needs it any more, and so what it reads
                        del self.readers[name][place]
                read = [name for name in names if name in self.producer]
                for name in read:
                    if len(self.readers[name]) > _MANY_READERS:
                        self.postponed[self.producer[name]] = None
                    else:
                        waiting.append(self.producer[name])

    def consider(self, place: int) -> bool:
        """Inline one definition into its readers, if that pays; whether it was."""
        producer = self.nodes[place]
        if producer is None or not producer.is_pointwise:
            return False
        uses = list(self._uses(producer))
        if not uses:
            return False
        must_exist = producer.name in self.kept or any(
            self._needs_memory(reader, producer.name) for reader in self.readers[producer.name]
        )
        work = work_of(producer.value)
        free = self._is_free(producer, work, uses, must_exist)
        if not free and (must_exist or all(self._is_pointwise(use, producer) for use in uses)):
            return False
        obstacle = self._obstacle(producer, uses, work, free=free)
        elsewhere = self._elsewhere(producer, uses)
        if obstacle is not None and elsewhere:  # the others can share a kernel with it
            obstacle, uses = self._obstacle(producer, elsewhere, work, free=free), elsewhere
        places = dict.fromkeys(use.reader.place for use in uses)
        names = "+".join(self._name(at) for at in places)
        saved = buffer_bytes(producer.buffer) * (len(places) + (not must_exist))
        reason = "computing it where it is read costs less than storing it"
        both = (producer.name, names)
        if not self.log.settle(DecisionKind.INLINE, both, obstacle, reason, saved):
            return False
        for at in places:
            self._inline(producer, at)
        return True

    def _is_free(self, producer: Node, work: Work, uses: Sequence[_Use], must_exist: bool) -> bool:
        """Whether computing it anew where it is read costs nothing."""
        if work.loads == 0:
            return not work.expensive
        if _widens(producer.value):
            return True
        return not must_exist and self._is_thin(producer, work, uses)

    def _is_thin(self, producer: Node, work: Work, uses: Sequence[_Use]) -> bool:
        """Whether it is little beside reading what it is computed of, which is no larger, and in
        memory anyway or of narrower types: then that is better stored."""
        if work.expensive or work.moderate or work.operations > _THIN:
            return False
        if any(load.operands for load in producer.loads):
            return False
        read = {load.buffer: self.buffers[load.buffer] for load in producer.loads}
        size = buffer_bytes(producer.buffer)
        large = [each for each in read.values() if _SLIGHT * buffer_bytes(each) > size]
        if sum(map(buffer_bytes, large)) > size:
            return False
        is_narrow = all(each.dtype.itemsize < producer.buffer.dtype.itemsize for each in large)
        several = len(self.readers[producer.name]) > 1  # one can share a kernel with it
        is_there = several and len(large) == 1 and self._is_in_memory(large[0].name)
        return (is_narrow or is_there) and all(self._is_pointwise(use, producer) for use in uses)

    def _is_in_memory(self, name: str) -> bool:
        """Whether a buffer is stored whatever reads it."""
        place = self.producer.get(name)
        return place is None or self.nodes[place] is None or name in self.kept

    def _needs_memory(self, place: int, name: str) -> bool:
        """Whether a reader takes the buffer as it lies in memory."""
        reader = self.nodes[place]
        return reader is None or (reader.scatter is not None and reader.scatter.target == name)

    def _name(self, place: int) -> str:
        return self.definitions[place].buffers[0].name

    def _uses(self, producer: Node) -> Iterator[_Use]:
        of_inputs: bool | None = None
        for place in self.readers.get(producer.name, {}):
            reader = self.nodes[place]
            if reader is None:
                continue
            in_blocks = reader.name in self.sums
            if in_blocks and of_inputs is None:
                of_inputs = self._is_of_inputs(producer)
            for load in reader.loads:
                if load.buffer == producer.name:
                    yield _Use(reader, load, in_blocks and bool(of_inputs))

    def _is_of_inputs(self, producer: Node) -> bool:
        """Whether it is computed point by point of inputs alone, as a weight is of its bytes: what
        is made by another kernel is rather finished there."""
        for load in producer.loads:
            place = self.producer.get(load.buffer)
            maker = None if place is None else self.nodes[place]
            if place is not None and (
                maker is None or not maker.is_pointwise or not self._is_of_inputs(maker)
            ):
                return False
        return True

    def _is_pointwise(self, use: _Use, producer: Node) -> bool:
        """Whether the reader's points correspond to the producer's one to one."""
        if use.points is not points(producer.ranges):
            return False
        index = plain(use.load.index)
        if index is None:
            return False
        number = position(index, producer.buffer.layout.size)
        return is_bijection(number, use.reader.ranges + use.reader.reduced)

    def _elsewhere(self, producer: Node, uses: list[_Use]) -> list[_Use]:
        """Uses that read a few of the producer's points, where all others read it point by point:
        it is stored for these alone, as a conversion of logits for those of the labels."""
        alike = [use for use in uses if self._is_pointwise(use, producer)]
        others = [use for use in uses if not self._is_pointwise(use, producer)]
        if {use.reader.place for use in alike} & {use.reader.place for use in others} or not alike:
            return []
        few = sum(estimate(use.points) for use in others)
        return others if _FEW_POINTS * few <= estimate(points(producer.ranges)) else []

    def _obstacle(self, producer: Node, uses: list[_Use], work: Work, *, free: bool) -> str | None:
        """Why the producer should rather be stored."""
        own = estimate(points(producer.ranges))
        total = sum(estimate(use.points) for use in _once_for_sorts(uses))
        opaque = sum(estimate(use.points) for use in uses if plain(use.load.index) is None)
        if 4 * opaque > own:
            return "it is read at coordinates that are computed from data"
        if not all(_is_movable(producer, use.load) for use in uses):
            return "what it reads lies elsewhere than where coordinates from data say"
        readers = {use.reader.place: use.reader for use in uses}
        for reader in readers.values():
            operations = sum(work_of(root).operations for root in reader.roots) + work.operations
            if operations > self.options.max_operations:
                return f"the reader would have more than {self.options.max_operations} operations"
        if free:
            return None
        if 4 * total <= 5 * own:  # a few points more, as in the last chunk of a reduction
            return None
        if any(load.buffer in self.reductions for load in producer.loads):
            return "it finishes a reduction, and runs once for each row with it"
        if work.expensive and work.expensive * total > _SMALL_REPEAT:
            return f"{work.expensive} expensive operations would run at {total} points, not {own}"
        if work.moderate and total > _MODERATE_RATIO * own:
            return f"{work.moderate} divisions or roots would run at {total} points, not {own}"
        if work.operations and any(reader.kind is not None for reader in readers.values()):
            return f"a reduction would compute it at {total} points, not {own}"
        if work.operations > self.options.inline_operations:
            return f"{work.operations} operations would run at {total} points, not {own}"
        if any(load.operands for load in producer.loads):
            return "its own reads are indirect and would be repeated"
        return self._more_bytes(producer, uses)

    def _more_bytes(self, producer: Node, uses: list[_Use]) -> str | None:
        """Compare the bytes moved with and without storing the producer."""
        stored = buffer_bytes(producer.buffer)
        without = stored
        names = dict.fromkeys(load.buffer for load in producer.loads)
        anew = [self._bytes_to_store(name) for name in names]
        with_inlining = sum(anew) - max(anew, default=0)  # one takes the producer's place
        readers = {use.reader.place: use.reader for use in uses}
        for reader in readers.values():
            without += min(stored, _touched(reader, producer.buffer))
            known = {load.buffer for load in reader.loads}
            for name in names:
                if name not in known:
                    with_inlining += min(
                        buffer_bytes(self.buffers[name]), _touched(reader, self.buffers[name])
                    )
        if with_inlining <= without:
            return None
        return f"reading its operands again would move {with_inlining:,} bytes, not {without:,}"

    def _bytes_to_store(self, name: str) -> int:
        """The bytes of a buffer that is stored only if a reader at other coordinates reads it:
        now its readers can share a kernel with it, unless they are too many."""
        place = self.producer.get(name)
        node = None if place is None else self.nodes[place]
        if node is None or not node.is_pointwise or name in self.kept:
            return 0
        if len(self.readers[name]) > _MANY_READERS:
            return 0
        uses = list(self._uses(node))
        inside = len({use.reader.place for use in uses}) == len(self.readers[name])
        fusable = inside and all(self._is_pointwise(use, node) for use in uses)
        size = buffer_bytes(node.buffer)
        return size if fusable and size > _IN_CACHE else 0

    def _inline(self, producer: Node, place: int) -> None:
        """Put the producer's value in place of the reader's loads of it."""
        reader = self.nodes[place]
        assert reader is not None
        wide = self.wide & {producer.name}

        def leaf(value: Value) -> Value | None:
            if isinstance(value, Load) and value.buffer == producer.name:
                return value_at(producer, value)
            return fold(value)

        changed = reader.rewritten(
            lambda value: rewrite(unrounded(value, wide), leaf, lambda expr: expr)
        )
        changed = replace(changed, origin=reader.origin + producer.origin)
        self.nodes[place] = changed
        self.definitions[place] = Definition((changed.buffer,), body_of(changed), changed.origin)
        del self.readers[producer.name][place]
        for load in producer.loads:
            self.readers[load.buffer][place] = None


def _widens(value: Value) -> bool:
    """Whether it is an element as a wider type: what is stored is to be the narrow one."""
    if not (isinstance(value, Op) and value.name == "to" and isinstance(value.args[0], Load)):
        return False
    source = value.args[0]
    return not source.operands and source.dtype.itemsize < value.dtype.itemsize


def value_at(producer: Node, load: Load) -> Value:
    """The value that `producer` stores where `load` reads; not rounded if that is an f32."""
    values = dict(zip(producer.ranges, load.index, strict=True))
    known: dict[Atom, IndexExpr] = {
        var: place for var, place in values.items() if isinstance(place, IndexExpr)
    }

    def moved(expr: IndexExpr) -> IndexExpr | Value:
        return _at(expr, values) or move(expr, known)

    value = producer.value if load.dtype is producer.value.dtype else widened(producer.value)
    return rewrite(value, fold, moved)


def _at(expr: IndexExpr, values: Mapping[Var, IndexExpr | Value]) -> Value | None:
    """The coordinate computed from data that `expr` is, if it is one."""
    var = as_variable(expr)
    place = None if var is None else values.get(var)
    return place if isinstance(place, Value) else None


def _once_for_sorts(uses: Iterable[_Use]) -> list[_Use]:
    """Accesses without those of sorts of the same keys again: a kernel sorts them once."""
    found: dict[object, _Use] = {}
    for use in uses:
        reader = use.reader
        sorts = isinstance(reader.kind, SortKind)
        keys = (reader.ranges, reader.reduced, reader.value) if sorts else reader.place
        found.setdefault((keys, use.load), use)
    return list(found.values())


def _is_movable(producer: Node, load: Load) -> bool:
    """Whether the producer's value can be computed where `load` reads.

    What the data says is checked where it is read at: each coordinate computed from data is
    one of a load that always happens, and is used for nothing but such coordinates.
    """
    places = zip(producer.ranges, load.index, strict=True)
    opaque = {var for var, place in places if isinstance(place, Value)}
    if not opaque:
        return True
    parts = list(post_order([producer.value]))
    if any(isinstance(part, Masked) for part in parts):
        return False
    used = [i for each in producer.loads for i in each.index if isinstance(i, IndexExpr)]
    others = [part.expr for part in parts if isinstance(part, IndexValue)]
    known = {as_variable(expr) for expr in used}
    return opaque <= known and not any(
        atoms(expr) & opaque and as_variable(expr) is None for expr in (*used, *others)
    )


def _touched(reader: Node, buffer: Buffer) -> int:
    """At most so many bytes of `buffer` one pass of the reader touches."""
    return estimate(points(reader.ranges + reader.reduced)) * buffer.dtype.itemsize
