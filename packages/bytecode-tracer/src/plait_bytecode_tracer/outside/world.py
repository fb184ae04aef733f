"""What a trace knows of the caller's objects, and has changed in them."""

from __future__ import annotations

import contextvars
from collections.abc import Iterable
from dataclasses import field
from typing import Any

from plait_bytecode_tracer.outside.draws import Generator
from plait_bytecode_tracer.values.open_lists import OpenList, open_of, raw_items
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    CellVariable,
    DictVariable,
    Known,
    SequenceVariable,
    SubclassVariable,
    TensorVariable,
    Variable,
)
from plait_utils import dataclass


@dataclass(slots=True)
class World:
    """Objects from outside the call, mostly by their ids; `kept` keeps these from being reused."""

    wrapped: dict[int, Variable] = field(default_factory=dict)
    """What stands for each object."""
    kept: list[object] = field(default_factory=list)
    """The objects whose ids are keys of `wrapped`."""
    arguments: list[object] = field(default_factory=list)
    """What a continuation was given that may die: nothing but the trace holds it."""
    attributes: dict[int, dict[str, Variable]] = field(default_factory=dict)
    """Attributes that the trace has set, by the object's id."""
    owners: dict[int, Known | TensorVariable] = field(default_factory=dict)
    """What stands for the objects of `attributes`."""
    written_tables: dict[int, int] = field(default_factory=dict)
    """Whose attributes these are, by the ids of the dicts that hold them and of the objects."""
    written_classes: set[int] = field(default_factory=set)
    """The ids of the classes among these."""
    marked_tensors: list[TensorVariable | SubclassVariable] = field(default_factory=list)
    """Tensors on which the trace has set attributes."""
    storages: dict[int, Variable] = field(default_factory=dict)
    """Builtin containers inside objects, by the object's id."""
    changed: dict[int, Variable] = field(default_factory=dict)
    """Containers and cells that the trace has changed, in order."""
    taken: dict[int, Any] = field(default_factory=dict)
    """How far iterators were read."""
    distinct: dict[str, tuple[Source, Variable]] = field(default_factory=dict)
    """Objects that are keys in the trace and where each is from, by the code of that."""
    cache_keys: dict[int, tuple[object, dict[object, bool]]] = field(default_factory=dict)
    """The keys that were asked of functions with caches, and whether the cache lacked them."""
    references: dict[int, Variable] = field(default_factory=dict)
    """The weak references that the trace has made, by the ids of what they refer to."""
    context: dict[int, tuple[contextvars.ContextVar[Any], Variable | None]] = field(
        default_factory=dict
    )
    """What the trace has set context variables to; None: nothing."""
    generators: dict[int, Generator] = field(default_factory=dict)
    """Random generators that were drawn from."""
    globals_read: dict[tuple[int, str], Variable] = field(default_factory=dict)
    """The variables of modules that the trace has read and not changed."""
    defaults: dict[int, tuple[list[Variable], dict[str, Variable]]] = field(default_factory=dict)
    """The default values of functions that have been inlined."""

    def changes(self) -> tuple[object, ...]:
        """What the trace has changed so far, as something to compare."""
        changed = self.changed.values()
        held = [
            tuple(map(id, _held_by(each)))
            for each in changed
            if isinstance(each, SequenceVariable | DictVariable)
        ]
        ends = [found.taken() for found in map(_open, changed) if found is not None]
        cells = [id(each.content) for each in changed if isinstance(each, CellVariable)]
        tables = [*self.attributes.values(), *(t.attributes or {} for t in self.marked_tensors)]
        names = [tuple(map(id, table.values())) for table in tables]
        variables = {key: id(value) for key, (_, value) in self.context.items()}
        return len(self.changed), held, ends, cells, names, variables

    def clear(self) -> None:
        """Let go of the objects."""
        for table in (
            *(self.wrapped, self.kept, self.arguments, self.attributes, self.owners),
            *(self.marked_tensors, self.storages, self.changed, self.taken, self.distinct),
            *(self.written_tables, self.cache_keys, self.references, self.context, self.generators),
            *(self.globals_read, self.defaults),
        ):
            table.clear()


def _open(variable: Variable) -> OpenList | None:
    return open_of(variable.items) if isinstance(variable, SequenceVariable) else None


def _held_by(container: SequenceVariable | DictVariable) -> Iterable[Variable]:
    """What a changed container holds, as far as that is known."""
    items = container.items
    return [*items.values()] if isinstance(items, dict) else raw_items(items)
