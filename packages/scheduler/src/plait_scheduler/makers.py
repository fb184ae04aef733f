"""What defines each buffer of a graph, and values with what they read computed in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait_ir_lowering import (
    Buffer,
    CheckedIndex,
    Definition,
    Graph,
    IndexExpr,
    Load,
    Pointwise,
    Reduction,
    ReductionKind,
    TensorRef,
    Value,
    Var,
    atoms,
    loads_of,
    rewrite,
)
from plait_scheduler.attention_masks import in_bounds
from plait_scheduler.attention_operands import Operands
from plait_scheduler.domains import Substitution, move
from plait_scheduler.options import SchedulerOptions
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Makers:
    """What defines each buffer, and how kernels over pairs may read it."""

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
        made = [buffer for each in graph.definitions for buffer in each.buffers]
        return cls(
            graph.definitions,
            {b.name: d for d in graph.definitions for b in d.buffers},
            {buffer.name: buffer for buffer in (*graph.inputs, *made)},
            options.attention_operands,
            options.attention_sums,
        )

    def widened(
        self, operands: Operands, queries: TensorRef, keys: TensorRef
    ) -> tuple[TensorRef, TensorRef]:
        """What queries and keys are copies of: both of 16 bits, or neither."""
        found = [operands.original(ref, widened=True) for ref in (queries, keys)]
        if len({self.buffers[ref.buffer].dtype for ref in found}) > 1:
            found = [operands.original(ref, widened=False) for ref in (queries, keys)]
        return found[0], found[1]

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


def _plain(load: Load) -> Load:
    """A load without checks of indices that certainly lie in their dimensions."""
    known = [in_bounds(at) if isinstance(at, CheckedIndex) else None for at in load.index]
    places = [at if place is None else place for at, place in zip(load.index, known, strict=True)]
    return Load(load.buffer, places, load.dtype)


def _at(ranges: Sequence[Var], index: Sequence[IndexExpr | Value], value: Value) -> Value | None:
    """A definition's value at other coordinates; None where these are computed."""
    places: Substitution = {}
    for var, at in zip(ranges, index, strict=True):
        if not isinstance(at, IndexExpr):
            return None
        places[var] = at
    return moved(value, places)


def moved(value: Value, places: Substitution) -> Value:
    """A value over other variables."""
    return rewrite(value, lambda _: None, lambda expr: move(expr, places))
