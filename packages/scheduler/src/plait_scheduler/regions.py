"""Parts of inputs that a program writes back to, as scatters of these parts.

What is assigned to a slice or a place of an input is recorded as the whole input with that part
replaced. Where the input's own memory is written to, loops over the part are enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import field, replace
from itertools import chain
from typing import cast

from plait_ir_lowering import (
    Atom,
    Buffer,
    CheckedIndex,
    Const,
    Definition,
    ExternCall,
    Graph,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Masked,
    Op,
    Pointwise,
    Scatter,
    ScatterKind,
    Value,
    Var,
    as_index,
    atoms,
    loads_of,
    rewrite,
    substitute,
)
from plait_scheduler.domains import points
from plait_scheduler.nodes import reads_of, result_reads
from plait_scheduler.prune import prune
from plait_scheduler.writeback import results_written_back
from plait_utils import dataclass


def write_regions(graph: Graph) -> Graph:
    """`graph` with scatters for what replaces less than half of an input that nothing reads then.

    What is computed of the input itself is computed before. A part with gaps is left.
    """
    buffers = {b.name: b for b in graph.inputs}
    buffers |= {b.name: b for d in graph.definitions for b in d.buffers}
    wanted = results_written_back(graph, buffers)
    if not wanted:
        return graph
    found: dict[str, list[tuple[Definition, ...]]] = {}
    parts = _Parts(graph, buffers)
    for result, target in wanted.items():
        scatters = parts.scatters(result, target)
        if scatters:
            found[result] = scatters
    changed = {part[-1].buffers[0].name: part for parts_of in found.values() for part in parts_of}
    if not changed:
        return graph
    definitions = (changed.get(d.buffers[0].name, (d,)) for d in graph.definitions)
    made = {name for result in found for name in parts.checked[result]}
    checks = tuple(name for name in graph.checks if name not in made)
    return prune(replace(graph, definitions=tuple(chain.from_iterable(definitions)), checks=checks))


@dataclass(slots=True)
class _Parts:
    """Finds the parts of inputs that definitions replace."""

    graph: Graph
    buffers: Mapping[str, Buffer]
    makers: dict[str, Definition] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)
    last_read: dict[str, int] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    spared: Counter[str] = field(default_factory=Counter)
    """How often what reads a buffer is left out: copies of parts that were scattered into."""
    checked: dict[str, set[str]] = field(default_factory=dict)
    """By result, the scatters whose indices are checked where its parts are written."""

    def __post_init__(self) -> None:
        self.reads.update(result_reads(self.graph))  # scatters that are checks are what is wanted
        for place, definition in enumerate(self.graph.definitions):
            names = reads_of(definition)
            self.reads.update(names)
            self.last_read |= dict.fromkeys(names, place)
            self.makers |= {b.name: definition for b in definition.buffers}
            self.places |= {b.name: place for b in definition.buffers}

    def scatters(self, result: str, target: str) -> list[tuple[Definition, ...]]:
        """Scatters of parts, one into what another gave, of which the first is into an input; each
        behind what it needs.

        None where some of them is no such part; what is a scatter already stays.
        """
        found: list[tuple[Definition, ...]] = []
        checked = self.checked.setdefault(result, set())
        name = result
        while name != target:
            others = self.reads[name] - self.spared[name]
            if name not in self.makers or (name != result and others != 1):
                return []
            definition = self.makers[name]
            if isinstance(definition.body, Scatter):
                checked.add(name)
            else:
                made = self._of_region(definition, target, checked)
                if made is None:
                    return []
                found.append(made)
                definition = made[-1]
            assert isinstance(definition.body, Scatter)
            first, name = name, definition.body.target
        return found if self.last_read.get(target, -1) <= self.places[first] else []

    def _of_region(
        self, definition: Definition, target: str, checked: set[str]
    ) -> tuple[Definition, ...] | None:
        body, buffer = definition.body, definition.buffers[0]
        if not isinstance(body, Pointwise):
            return None
        value = self._inlined(body.value)
        if not isinstance(value, Masked) or not isinstance(value.other, Load):
            return None
        base = value.other.buffer
        if self.buffers[base].layout != buffer.layout or value.dtype is not buffer.dtype:
            return None
        region = _Region(body.ranges, tuple(var.expr for var in body.ranges), value)
        whole = region
        while (inner := _narrowed(region, base)) is not None:
            region = replace(inner, value=self._inlined(inner.value))
        if region is whole:
            return None
        scatter = self._of_scatter(region, base, target)
        if scatter is not None:
            checked.add(cast(Load, region.value).buffer)
            self.spared[base] += 1
            return (replace(definition, body=scatter),)
        count, numel = points(region.ranges), buffer.layout.numel
        if count.is_constant and numel.is_constant and 2 * count.as_int() > numel.as_int():
            return None
        index = tuple(
            at if at is var.expr else _within(at, var.extent)
            for at, var in zip(region.index, body.ranges, strict=True)
        )
        needed: tuple[Definition, ...] = ()
        value = region.value
        if self._depends([value], {base, target}):
            needed = (self._before(definition, region),)
            (part,) = needed[0].buffers
            value = Load(part.name, [var.expr for var in region.ranges], part.dtype)
        scatter = Scatter(base, region.ranges, index, ScatterKind.ASSIGN, value)
        return *needed, replace(definition, body=scatter)

    def _of_scatter(self, region: _Region, base: str, target: str) -> Scatter | None:
        """One scatter into the buffer, for a part that is one into a copy of itself, as where some
        rows of one table of a stack are replaced."""
        everywhere = tuple(var.expr for var in region.ranges)
        part = self._only_read(region.value)
        if part is None or not isinstance(part.body, Scatter):
            return None
        if tuple(cast(Load, region.value).index) != everywhere:
            return None
        inner = part.body
        copy = self.makers.get(inner.target)
        if copy is None or self.reads[inner.target] != 1 or not isinstance(copy.body, Pointwise):
            return None
        kept = _moved(copy.body.value, dict(zip(copy.body.ranges, everywhere, strict=True)))
        if not isinstance(kept, Load) or kept.buffer != base or tuple(kept.index) != region.index:
            return None
        places = dict(zip(region.ranges, inner.index, strict=True))
        index = [_at_place(at, places) for at in region.index]
        values = [each for each in (*inner.index, inner.value) if isinstance(each, Value)]
        if None in index or self._depends(values, {base, target}):
            return None
        found = tuple(each for each in index if each is not None)
        return Scatter(base, inner.ranges, found, inner.kind, inner.value)

    def _only_read(self, value: Value) -> Definition | None:
        """What makes the buffer of a load that nothing else reads."""
        if not isinstance(value, Load) or value.operands or self.reads[value.buffer] != 1:
            return None
        return self.makers.get(value.buffer)

    def _before(self, definition: Definition, region: _Region) -> Definition:
        """The values of a part, computed before it is written."""
        (buffer,) = definition.buffers
        name = f"{buffer.name}_part"
        while name in self.buffers:
            name += "_"
        layout = Layout.of([var.extent for var in region.ranges])
        part = Buffer(name, buffer.dtype, buffer.device, layout)
        return Definition((part,), Pointwise(region.ranges, region.value), definition.origin)

    def _inlined(self, value: Value) -> Value:
        """The value; what is only read here, point by point, in place of a load of it."""
        while isinstance(value, Load) and not value.operands and self.reads[value.buffer] == 1:
            made = self.makers.get(value.buffer)
            if made is None or not isinstance(made.body, Pointwise):
                break
            if made.body.value.dtype is not value.dtype:
                break
            places = cast("tuple[IndexExpr, ...]", value.index)
            moved: dict[Atom, IndexExpr] = dict(zip(made.body.ranges, places, strict=True))
            value = _moved(made.body.value, moved)
        return value

    def _depends(self, values: Sequence[Value], names: Set[str]) -> bool:
        """Whether loops that compute values may read one of some buffers."""
        waiting = [load.buffer for load in loads_of(values)]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in names:
                return True
            made = self.makers.get(name)
            if name not in seen and made is not None and not isinstance(made.body, ExternCall):
                waiting += reads_of(made)
            seen.add(name)
        return False


@dataclass(frozen=True, slots=True)
class _Region:
    """Loops over a part of a buffer, its coordinates at each point, and the value there."""

    ranges: tuple[Var, ...]
    index: tuple[IndexExpr, ...]
    value: Value


def _at_place(at: IndexExpr, places: Mapping[Var, IndexExpr | Value]) -> IndexExpr | Value | None:
    """A coordinate, where variables stand for others; None where one that is computed is moved."""
    used = [var for var in places if var in atoms(at)]
    if len(used) == 1 and at is used[0].expr:
        return places[used[0]]
    moved: dict[Atom, IndexExpr] = {}
    for var in used:
        place = places[var]
        if not isinstance(place, IndexExpr):
            return None
        moved[var] = place
    return substitute(at, moved)


def _within(at: IndexExpr, size: IndexExpr) -> IndexExpr | Value:
    """A coordinate; one that depends on the call is checked, as nothing else is beyond a mask."""
    return at if at.is_constant else CheckedIndex(IndexValue(at), size)


def _narrowed(region: _Region, base: str) -> _Region | None:
    """Where a mask holds, if elsewhere the value is what the buffer holds there."""
    value = region.value
    if not isinstance(value, Masked) or not isinstance(value.other, Load):
        return None
    kept = value.other
    if kept.buffer != base or tuple(kept.index) != region.index:
        return None
    limits: dict[tuple[Var, bool], IndexExpr] = {}
    for condition in _conditions(value.mask):
        found = _limits(condition, region.ranges)
        if not found or not limits.keys().isdisjoint(found):
            return None
        limits |= found
    region = replace(region, value=value.value)
    for var in region.ranges:
        first, last = limits.get((var, False), as_index(0)), limits.get((var, True), var.extent - 1)
        if not _are_within(first, last, var.extent):
            return None
        region = _restricted(region, var, first, last)
    return region


def _are_within(first: IndexExpr, last: IndexExpr, extent: IndexExpr) -> bool:
    """Whether limits are those of a part that is not empty, as far as they are known."""
    rests = (first, last - first, extent - 1 - last)
    return all(not each.is_constant or each.as_int() >= 0 for each in rests)


def _conditions(mask: Value) -> Iterator[Value]:
    if isinstance(mask, Op) and mask.name == "logical_and":
        for each in mask.args:
            yield from _conditions(each)
    else:
        yield mask


def _limits(condition: Value, ranges: Sequence[Var]) -> dict[tuple[Var, bool], IndexExpr]:
    """What a condition says of the least value of a variable, and of the greatest (True)."""
    if not isinstance(condition, Op) or condition.name not in ("eq", "ge", "le"):
        return {}
    left, right = (index_of(each) for each in condition.args)
    if left is None or right is None:
        return {}
    used = [var for var in ranges if var in atoms(left) | atoms(right)]
    if len(used) != 1:
        return {}
    (var,) = used
    rest = left - var.expr
    if var in atoms(rest) | atoms(right):
        return {}
    sides = {"eq": (False, True), "ge": (False,), "le": (True,)}[condition.name]
    return {(var, side): right - rest for side in sides}


def index_of(value: Value) -> IndexExpr | None:
    """The index expression that a value is, if it is one."""
    if isinstance(value, IndexValue):
        return value.expr
    return as_index(value.value) if isinstance(value, Const) and type(value.value) is int else None


def _restricted(region: _Region, var: Var, first: IndexExpr, last: IndexExpr) -> _Region:
    """The region between two values of a variable."""
    if first is as_index(0) and last is var.extent - 1:
        return region
    one = first is last
    fresh = Var(var.name, last - first + 1)
    moved: dict[Atom, IndexExpr] = {var: first if one else first + fresh.expr}
    ranges = tuple(
        fresh if each is var else each for each in region.ranges if not (one and each is var)
    )
    return _Region(
        ranges,
        tuple(substitute(at, moved) for at in region.index),
        _moved(region.value, moved),
    )


def _moved(value: Value, moved: Mapping[Atom, IndexExpr]) -> Value:
    return rewrite(value, lambda _: None, lambda expr: substitute(expr, moved))
