"""Squared deviations from a mean, in chunks that are read once.

    sum over 3,211,264 elements of (x - mean)²  needs their mean first, and reads them again;
    sum over 256 chunks of (sum of (x - m)² + 12,544 (m - mean)²), with each chunk's own mean m,
    gives the same and reads x once, since a chunk of 12,544 elements stays in registers.

(T. Chan, G. Golub, R. LeVeque: Updating formulae and a pairwise algorithm for computing sample
variances, 1979.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from plait_ir_lowering import (
    Buffer,
    Const,
    Definition,
    Graph,
    Load,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    Value,
    Var,
)
from plait_scheduler.domains import plain, points
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Deviations:
    """What a sum of squared deviations adds up."""

    total: str
    """The buffer that holds the sums of `value`."""
    value: Value
    mean: Load


def squared_deviations(graph: Graph) -> dict[str, Deviations]:
    """The sums of squared deviations from the mean of the same elements, by buffer."""
    definitions = {d.buffers[0].name: d for d in graph.definitions if len(d.buffers) == 1}
    found: dict[str, Deviations] = {}
    for name, definition in definitions.items():
        body = definition.body
        if isinstance(body, Reduction) and body.kind is ReductionKind.SUM:
            made = _deviations(body, definitions)
            if made is not None:
                found[name] = made
    return found


def _deviations(body: Reduction, definitions: Mapping[str, Definition]) -> Deviations | None:
    match body.value:
        case Op("mul", (Op("sub", (value, Load() as mean)) as left, right)) if left is right:
            pass
        case Op("square", (Op("sub", (value, Load() as mean)),)):
            pass
        case _:
            return None
    total = _averaged(mean, body.ranges, definitions)
    if total is None or not isinstance(definitions[total].body, Reduction):
        return None
    wanted = Reduction(body.ranges, body.reduction_ranges, ReductionKind.SUM, value)
    return Deviations(total, value, mean) if definitions[total].body == wanted else None


def _averaged(
    mean: Load, ranges: Sequence[Var], definitions: Mapping[str, Definition]
) -> str | None:
    """The buffer of which `mean` is an element over a number, the one at these points."""
    definition = definitions.get(mean.buffer)
    if definition is None or not _is_at(mean, ranges):
        return None
    match definition.body:
        case Pointwise(own, Op("div", (Load() as total, Const()))) if _is_at(total, own):
            return total.buffer if total.buffer in definitions else None
    return None


def _is_at(load: Load, ranges: Sequence[Var]) -> bool:
    return plain(load.index) == tuple(var.expr for var in ranges)


def deviations_by_chunks(
    definition: Definition,
    found: Deviations,
    chunked: Reduction,
    sums: Buffer,
    names: tuple[str, str],
) -> Iterator[Definition]:
    """Definitions for a sum of squared deviations.

    Args:
        definition: the sum, of all elements.
        found: what it adds up.
        chunked: the sum of the elements of each chunk, whose results are in `sums`.
        sums: laid out by the result's coordinates and then the chunks'.
        names: for the chunks' means and their own squared deviations.
    """
    (buffer,) = definition.buffers
    assert isinstance(definition.body, Reduction)
    kept = definition.body.ranges
    chunks = chunked.ranges[len(kept) :]
    at, dtype = [var.expr for var in chunked.ranges], buffer.dtype
    count = Const(float(points(chunked.reduction_ranges).as_int()), dtype)
    center, partial = (replace(sums, name=name) for name in names)

    def load(of: Buffer) -> Load:
        return Load(of.name, at, of.dtype)

    mean = Pointwise(chunked.ranges, Op("div", [load(sums), count]))
    yield Definition((center,), mean, definition.origin)
    squares = _square(Op("sub", [chunked.value, load(center)]))
    own = Reduction(chunked.ranges, chunked.reduction_ranges, ReductionKind.SUM, squares)
    yield Definition((partial,), own, definition.origin)
    between = Op("mul", [_square(Op("sub", [load(center), found.mean])), count])
    joined = Reduction(kept, chunks, ReductionKind.SUM, Op("add", [load(partial), between]))
    yield Definition((buffer,), joined, definition.origin)


def _square(value: Value) -> Value:
    return Op("mul", [value, value])
