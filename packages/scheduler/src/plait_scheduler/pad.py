"""Room behind the rows of matrix products that the CPU would write at awkward places.

Products of f32 into rows that begin at no multiple of 32 bytes take up to twice as long as into
rows that do. Where only loops read the product, which do so by coordinates, its rows get room
behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait_ir_lowering import (
    Attention,
    Buffer,
    Definition,
    DType,
    ExternCall,
    Graph,
    IndexExpr,
    Layout,
    Mixture,
    Scatter,
    as_index,
)
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.nodes import final_reads, reads_of
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.sizes import estimate

PRODUCTS = frozenset(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"))
"""Calls that multiply matrices; their out variants write to any strides."""
_BEGIN = 8
"""Rows then begin at multiples of 32 bytes, which vectors of AVX2 have."""
_LEAST_COLUMNS = 256
_LEAST_ROWS = 64
"""Smaller products gain nothing; of rows whose number is open there are taken to be many."""


def pad_products(graph: Graph, options: SchedulerOptions, log: DecisionLog) -> Graph:
    """`graph` with room behind the rows of products that gain by it."""
    if not options.pad_products:
        return graph
    definitions = list(graph.definitions)
    padded = {place: p for place, d in enumerate(definitions) if (p := _padded(d)) is not None}
    if not padded:
        return graph
    taken = _read_as_they_lie(graph)
    for place, buffer in padded.items():
        obstacle = "something else than loops reads it" if buffer.name in taken else None
        reason = f"rows of {buffer.layout.size[-1]} would begin at no multiple of 32 bytes"
        if log.settle(DecisionKind.PAD, (buffer.name, ""), obstacle, reason):
            definitions[place] = replace(definitions[place], buffers=(buffer,))
    return replace(graph, definitions=tuple(definitions))


def _padded(definition: Definition) -> Buffer | None:
    """What a product gives, with room behind its rows; None where it is none that gains."""
    body = definition.body
    if not isinstance(body, ExternCall) or body.op not in PRODUCTS or not body.out_variant:
        return None
    (buffer,) = definition.buffers
    size = buffer.layout.size
    if not buffer.layout.is_row_major or not gains_by_begins(buffer) or begin_well([size[-1]]):
        return None
    columns = size[-1].as_int()
    return replace(buffer, layout=Layout.of(size, _strides(size, columns + -columns % _BEGIN)))


def gains_by_begins(product: Buffer) -> bool:
    """Whether a product is written faster to rows that begin at multiples of 32 bytes."""
    size = product.layout.size
    if product.dtype is not DType.f32 or product.device.type != "cpu":
        return False
    if not size[-1].is_constant:
        return False
    return estimate(size[-2]) >= _LEAST_ROWS and size[-1].as_int() >= _LEAST_COLUMNS


def begin_well(places: Sequence[IndexExpr]) -> bool:
    """Whether elements of f32 at these places begin multiples of 32 bytes."""
    return all(coefficient % _BEGIN == 0 for place in places for _, coefficient in place.terms)


def _strides(size: tuple[IndexExpr, ...], row: int) -> list[IndexExpr]:
    """Row-major strides, from one row to the next `row` elements."""
    strides = [as_index(row), as_index(1)]
    for extent in reversed(size[1:-1]):
        strides.insert(0, strides[0] * extent)
    return strides


def _read_as_they_lie(graph: Graph) -> frozenset[str]:
    """The buffers whose memory is handed out, given to calls, or written over."""
    names = set(final_reads(graph))
    for definition in graph.definitions:
        if isinstance(definition.body, ExternCall | Attention | Mixture):
            names.update(reads_of(definition))
        elif isinstance(definition.body, Scatter):
            names.add(definition.body.target)
    return frozenset(names)
