"""Reductions in two stages, so that reductions to few elements run in parallel.

    sum over 1,048,576 elements  =  sum over 128 of (sum over 8,192 elements each)

The first stage computes a partial result for each chunk, the second combines these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod

from plait_ir_lowering import (
    Buffer,
    Const,
    Definition,
    DType,
    Graph,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Masked,
    Op,
    Reduction,
    ReductionKind,
    Scalar,
    Value,
    Var,
    as_index,
    loads_of,
    rewrite,
    row_major,
    stride_of,
)
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.domains import Substitution, at_position, move, plain, points
from plait_scheduler.moments import Deviations, deviations_by_chunks, squared_deviations
from plait_scheduler.options import SchedulerOptions
from plait_utils import dataclass

_NEIGHBOURS = 64
"""How many results next to each other a task computes at most: a few vectors of them."""

_MOST_CHUNKS = 4
"""How many times the chunks aimed for there may be."""


def split_reductions(
    graph: Graph,
    options: SchedulerOptions,
    log: DecisionLog,
    sums: frozenset[str] = frozenset(),
) -> Graph:
    """`graph` with large reductions to few elements in two stages, but for those in `sums`, of
    products of matrices, which are divided already where that is worth it."""
    if not options.split_reductions:
        return graph
    layouts = {b.name: b.layout for b in graph.inputs}
    layouts |= {b.name: b.layout for d in graph.definitions for b in d.buffers}
    deviations = squared_deviations(graph) if options.longest_chunk else {}
    goals = split_goals(options.split_goals)
    splitter = _Splitter(options, log, layouts, deviations, set(layouts), goals)
    parts = [
        part
        for definition in graph.definitions
        for part in (
            (definition,) if definition.buffers[0].name in sums else splitter.parts(definition)
        )
    ]
    return replace(graph, definitions=tuple(parts))


def split_goals(text: str) -> dict[str, int]:
    """What single reductions aim for, by name; see `SchedulerOptions.split_goals`.

    Raises ValueError for a text of another form.
    """
    pairs = (part.split("=") for part in text.split(",") if part)
    return {name.strip(): int(points) for name, points in pairs}


@dataclass(slots=True)
class _Splitter:
    options: SchedulerOptions
    log: DecisionLog
    layouts: dict[str, Layout]
    deviations: dict[str, Deviations]
    taken: set[str]
    goals: Mapping[str, int]
    chunked: dict[str, Definition] = field(default_factory=dict)
    """The first stages of sums that deviations are from the means of."""

    def parts(self, definition: Definition) -> Iterable[Definition]:
        """The stages of a definition: itself, if there is one."""
        body = definition.body
        if not isinstance(body, Reduction):
            return (definition,)
        (buffer,) = definition.buffers
        found = self.deviations.get(buffer.name)
        first = self.chunked.get(found.total) if found else None
        if found is not None and first is not None:
            return self._deviations(definition, found, first)
        options, goal = self.options, self.goals.get(buffer.name)
        if goal == 0:
            return (definition,)
        if goal is not None:
            options = replace(options, split_points=goal)
        width = _neighbours(body, self.layouts)
        longest = self._longest(buffer.name, width)
        if not _is_large(body, width, longest, self.options):
            return (definition,)
        rows, columns = points(body.ranges), points(body.reduction_ranges)
        reason = f"{columns} elements for each of {rows} results run in parallel"
        obstacle = _obstacle(body, buffer)
        if not self.log.settle(DecisionKind.SPLIT, (buffer.name, ""), obstacle, reason):
            return (definition,)
        chunks = _chunks(body, width, longest, options)
        stages = tuple(_two_stages(definition, body, width, chunks, self.taken))
        if chunks.exists is None:
            self.chunked[buffer.name] = stages[0]
        return stages

    def _longest(self, name: str, width: int) -> int | None:
        """The longest chunk of a sum from whose mean deviations are taken, if it has a limit: one
        that neighbours share is in a cache when it is read again."""
        averaged = any(found.total == name for found in self.deviations.values())
        return self.options.longest_chunk if averaged and width == 1 else None

    def _deviations(
        self, definition: Definition, found: Deviations, first: Definition
    ) -> Iterable[Definition]:
        (buffer,), (sums,) = definition.buffers, first.buffers
        reason = "chunks are read once, with a mean of their own"
        both = (buffer.name, found.total)
        if not self.log.settle(DecisionKind.SPLIT, both, None, reason):
            return (definition,)
        assert isinstance(first.body, Reduction)
        names = (
            _fresh(buffer.name, "center", self.taken),
            _fresh(buffer.name, "partial", self.taken),
        )
        return deviations_by_chunks(definition, found, first.body, sums, names)


def _is_large(body: Reduction, width: int, longest: int | None, options: SchedulerOptions) -> bool:
    """Whether there is enough to do for each of few results; what sizes that are open multiply is
    done at least once."""
    rows = points(body.ranges)
    if not rows.is_constant or not rows.as_int():
        return False
    known = prod(var.extent.as_int() for var in body.reduction_ranges if var.extent.is_constant)
    if longest is not None and known > longest and rows.as_int() < options.split_points:
        return True
    few = -(-rows.as_int() // width) < options.min_parallel_points
    is_long = known * width >= options.min_split_row
    return few and is_long and rows.as_int() * known >= options.min_split_elements


def _neighbours(body: Reduction, layouts: dict[str, Layout]) -> int:
    """How many results one task computes: those next to each other in memory, as the channels
    of images with channels last, are computed together."""
    strides: dict[Var, int] = {}
    for load in loads_of([body.value]):
        at = plain(load.index)
        if at is None or load.buffer not in layouts:
            continue
        offset = layouts[load.buffer].linear(at)
        if any(stride_of(offset, var) is as_index(1) for var in body.reduction_ranges):
            return 1
        for var in body.ranges:
            if stride_of(offset, var) is as_index(1):
                strides[var] = strides.get(var, 0) + 1
    extents = [var.extent.as_int() for var in strides if var.extent.is_constant]
    return min(max(extents, default=1), _NEIGHBOURS)


def _obstacle(body: Reduction, buffer: Buffer) -> str | None:
    if body.kind in (ReductionKind.ARGMAX, ReductionKind.ARGMIN):
        return "the position of an extremum is not computed in stages"
    if body.value.dtype.is_reduced_precision:
        return f"partial results would be rounded to {buffer.dtype}"
    return None


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Chunk variables, variables within a chunk, the old variables in terms of both, and
    what holds for points that exist (None: all do)."""

    over: tuple[Var, ...]
    within: tuple[Var, ...]
    values: Substitution
    exists: Value | None


def _two_stages(
    definition: Definition,
    body: Reduction,
    width: int,
    chunks: _Chunks,
    taken: set[str],
) -> Iterator[Definition]:
    (buffer,) = definition.buffers
    value = rewrite(body.value, lambda _: None, lambda expr: move(expr, chunks.values))
    if chunks.exists is not None:
        value = Masked(chunks.exists, value, Const(neutral(body.kind, value.dtype), value.dtype))
    ranges = body.ranges + chunks.over
    layout = _chunks_first(body.ranges, chunks.over) if width > 1 else Layout.of(_sizes(ranges))
    partial = Buffer(_fresh(buffer.name, "partial", taken), buffer.dtype, buffer.device, layout)
    first = Reduction(ranges, chunks.within, body.kind, value)
    yield Definition((partial,), first, definition.origin)
    load = Load(partial.name, [var.expr for var in ranges], partial.dtype)
    second = Reduction(body.ranges, chunks.over, body.kind, load)
    yield Definition((buffer,), second, definition.origin)


def _sizes(variables: Sequence[Var]) -> list[IndexExpr]:
    return [var.extent for var in variables]


def _chunks_first(kept: Sequence[Var], chunks: Sequence[Var]) -> Layout:
    """The layout of partial results where those of one chunk lie next to each other."""
    dense = row_major(_sizes((*chunks, *kept)))
    return Layout.of(_sizes((*kept, *chunks)), (*dense[len(chunks) :], *dense[: len(chunks)]))


def _fresh(name: str, suffix: str, taken: set[str]) -> str:
    partial = f"{name}_{suffix}"
    while partial in taken:
        partial += "_"
    taken.add(partial)
    return partial


def _chunks(body: Reduction, width: int, longest: int | None, options: SchedulerOptions) -> _Chunks:
    """Whole leading dimensions and a part of the next one; else chunks with a rest."""
    rows = -(-points(body.ranges).as_int() // width)
    goal = -(-options.split_points // rows)
    if longest is not None:
        known = (var.extent.as_int() for var in body.reduction_ranges if var.extent.is_constant)
        goal = max(goal, -(-prod(known) // longest))
    over: list[Var] = []
    within: list[Var] = []
    values: Substitution = {}
    count = 1
    for axis, var in enumerate(body.reduction_ranges):
        if not var.extent.is_constant:  # as many times what there is to do for each
            over.append(Var(f"chunk{axis}", var.extent))
            values[var] = over[-1].expr
            continue
        extent = var.extent.as_int()
        part = extent if count * extent <= goal * _MOST_CHUNKS else 1
        if part == 1 and count < goal:
            part = _divisor(extent, -(-goal // count), goal * _MOST_CHUNKS // count)
        chunk, inner = Var(f"chunk{axis}", part), Var(f"{var.name}_", extent // part)
        over.append(chunk)
        within.append(inner)
        values[var] = chunk.expr * (extent // part) + inner.expr
        count *= part
    is_open = len(within) < len(over)
    if count * rows < options.min_parallel_points and not is_open:
        return _uneven_chunks(body.reduction_ranges, goal)
    return _Chunks(tuple(over), tuple(within), values, None)


def _divisor(extent: int, least: int, most: int) -> int:
    """The smallest divisor of `extent` from `least` to `most`; 1 if there is none."""
    return next((d for d in range(max(least, 2), most + 1) if extent % d == 0), 1)


def _uneven_chunks(variables: Sequence[Var], count: int) -> _Chunks:
    """Chunks of equal length, the last of which reaches beyond the end."""
    total = points(variables).as_int()
    length = -(-total // count)
    chunk, inner = Var("chunk0", count), Var("within0", length)
    number: IndexExpr = chunk.expr * length + inner.expr
    index = at_position(number, [var.extent for var in variables])
    exists = Op("lt", [IndexValue(number), Const(total, DType.i64)])
    return _Chunks((chunk,), (inner,), dict(zip(variables, index, strict=True)), exists)


def neutral(kind: ReductionKind, dtype: DType) -> Scalar:
    """The element that changes nothing when it is combined with others."""
    match kind:
        case ReductionKind.SUM | ReductionKind.ANY:
            return 0
        case ReductionKind.PROD | ReductionKind.ALL:
            return 1
        case ReductionKind.MAX | ReductionKind.MIN:
            highest = kind is ReductionKind.MIN
            if dtype.is_float:
                return float("inf") if highest else float("-inf")
            if dtype is DType.bool_:
                return highest
            bits = 8 * dtype.itemsize
            low, high = (
                (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.is_signed else (0, (1 << bits) - 1)
            )
            return high if highest else low
    raise ValueError(f"{kind.value} has no neutral element")
