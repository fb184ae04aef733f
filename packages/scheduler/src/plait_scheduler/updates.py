"""Scatters into inputs that a program writes back to: in the inputs' own memory.

Of a cache of which a program writes some rows, only these rows are touched. What they held is saved
before, which checks the indices too, and put back where a later step fails: a program that raises
must have changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plait_ir_lowering import (
    Buffer,
    Definition,
    Graph,
    Layout,
    Load,
    Pointwise,
    Scatter,
    ScatterKind,
    Value,
    as_index,
    loads_of,
)
from plait_scheduler.domains import points
from plait_scheduler.fusion import Unit
from plait_scheduler.groups import Group, group_of
from plait_scheduler.nodes import node_of, reads_of
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Update:
    """Scatters, each into what the one before gave, of which the last is written back."""

    target: str
    """The input."""
    start: str
    """The copy of it that the first scatter starts from."""
    scatters: tuple[str, ...]
    needed: frozenset[str]
    """What the places are computed from; it stays until nothing can fail any more."""

    @property
    def result(self) -> str:
        """What is written back."""
        return self.scatters[-1]


@dataclass(frozen=True, slots=True)
class _Made:
    """Where a buffer is computed: the stage, the unit, and what defines it."""

    stage: int
    unit: Unit
    definition: Definition


def updates_of(
    graph: Graph,
    stages: Sequence[Sequence[Unit]],
    buffers: Mapping[str, Buffer],
    wanted: Mapping[str, str],
) -> Iterator[tuple[Update, str | None]]:
    """The scatters into inputs, and what is in the way of making them there, if something is.

    `wanted` are the results that are written back as a whole, each with its input.
    """
    made = {
        buffer.name: _Made(number, unit, graph.definitions[place])
        for number, stage in enumerate(stages)
        for unit in stage
        for place in unit.places
        for buffer in graph.definitions[place].buffers
    }
    for result, target in wanted.items():
        update = _update(result, target, made)
        if update is not None:
            yield update, _obstacle(update, graph, stages, buffers, made)


def _update(result: str, target: str, made: Mapping[str, _Made]) -> Update | None:
    scatters: list[str] = []
    needed: set[str] = set()
    name = result
    while name in made and isinstance(body := made[name].definition.body, Scatter):
        scatters.insert(0, name)
        needed |= {load.buffer for load in loads_of(_computed_places(body))}
        name = body.target
    if not scatters or name not in made or not _copies(made[name].definition, target):
        return None
    return Update(target, name, tuple(scatters), frozenset(needed))


def _computed_places(scatter: Scatter) -> list[Value]:
    return [at for at in scatter.index if isinstance(at, Value)]


def _copies(definition: Definition, target: str) -> bool:
    """Whether a definition is each element of an input where it lies."""
    body = definition.body
    if not isinstance(body, Pointwise) or not isinstance(body.value, Load):
        return False
    return body.value.buffer == target and tuple(body.value.index) == tuple(
        var.expr for var in body.ranges
    )


def _obstacle(
    update: Update,
    graph: Graph,
    stages: Sequence[Sequence[Unit]],
    buffers: Mapping[str, Buffer],
    made: Mapping[str, _Made],
) -> str | None:
    copy, first = made[update.start], made[update.scatters[0]]
    if buffers[update.start].layout != buffers[update.target].layout:
        return f"{update.target} lies otherwise in memory"
    if len(copy.unit.places) > 1:
        return f"the copy of {update.target} is computed with something else"
    for number, stage in enumerate(stages[first.stage :], first.stage):
        for unit in stage:
            if unit is not copy.unit and update.target in _read_by(unit, graph):
                return f"{update.target} is read in step {number}, and written in {first.stage}"
    for name in update.scatters:
        at = made[name]
        body = at.definition.body
        assert isinstance(body, Scatter)
        own = {load.buffer for load in loads_of(_computed_places(body))}
        if any(each in made and made[each].stage >= at.stage for each in own):
            return f"the places of {name} are computed as it is written"
        if not _is_small(body, buffers[name]):
            return f"{name} is written to more than half of {update.target}"
    return None


def _read_by(unit: Unit, graph: Graph) -> set[str]:
    return {name for place in unit.places for name in reads_of(graph.definitions[place])}


def _is_small(scatter: Scatter, buffer: Buffer) -> bool:
    """Whether saving what is overwritten costs less than the copy that it is instead of."""
    count, numel = points(scatter.ranges), buffer.layout.numel
    if count is as_index(0):
        return False
    if not count.is_constant or not numel.is_constant:
        return True
    return 2 * count.as_int() <= numel.as_int()


def saved_by(definition: Definition, name: str) -> tuple[Buffer, Group]:
    """A buffer of this name for what a scatter overwrites, and the group that computes it."""
    body, (buffer,) = definition.body, definition.buffers
    assert isinstance(body, Scatter)
    layout = Layout.of([var.extent for var in body.ranges])
    saved = Buffer(name, buffer.dtype, buffer.device, layout)
    value = Load(body.target, body.index, buffer.dtype)
    return saved, _group(Definition((saved,), Pointwise(body.ranges, value), definition.origin))


def restored_by(definition: Definition, saved: Buffer) -> Group:
    """The group that puts back what a scatter has overwritten."""
    body = definition.body
    assert isinstance(body, Scatter)
    value = Load(saved.name, [var.expr for var in body.ranges], saved.dtype)
    again = Scatter(body.target, body.ranges, body.index, ScatterKind.ASSIGN, value)
    return _group(Definition(definition.buffers, again, definition.origin))


def _group(definition: Definition) -> Group:
    node = node_of(0, definition)
    assert node is not None
    return group_of(node)
