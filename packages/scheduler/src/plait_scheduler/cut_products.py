"""Products that are padded for calls, as large as what is read of them, for kernels of one's own.

Calls for products want rows of a multiple of so many elements: factors get zeros behind their ends,
and of the result a part is copied out. A kernel writes rows of any length: it computes that part,
and reads the factors that the zeros were put to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plait_ir_lowering import (
    Buffer,
    Const,
    Definition,
    ExternArg,
    ExternCall,
    Graph,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Masked,
    Op,
    Origin,
    Pointwise,
    Reduction,
    Scan,
    TensorRef,
    Value,
    as_index,
    bounds,
    loads_of,
    rewrite,
)
from plait_scheduler.domains import Substitution, move
from plait_scheduler.nodes import final_reads, reads_of

_FACTORS: Mapping[str, int] = {"aten::mm": 0, "aten::addmm": 1}
"""Where the first factor is among the arguments of calls that are cut."""


def parts_read(graph: Graph) -> dict[str, tuple[int, int]]:
    """By product, how many of its rows and columns anything reads, where these are not all."""
    sizes: dict[str, tuple[int, ...]] = {}
    for definition in graph.definitions:
        body, buffer = definition.body, definition.buffers[0]
        size = buffer.layout.size
        is_known = all(extent.is_constant for extent in size)
        if isinstance(body, ExternCall) and body.op in _FACTORS and len(size) == 2 and is_known:
            sizes[buffer.name] = tuple(extent.as_int() for extent in size)
    whole = set(final_reads(graph))
    read = dict.fromkeys(sizes, (0, 0))
    for definition in graph.definitions:
        if not isinstance(definition.body, Pointwise | Reduction | Scan):
            whole.update(reads_of(definition))
            continue
        for load in loads_of([definition.body.value]):
            if load.buffer in sizes:
                ends = [_end(at, n) for at, n in zip(load.index, sizes[load.buffer], strict=True)]
                rows, columns = read[load.buffer]
                read[load.buffer] = max(rows, ends[0]), max(columns, ends[1])
    return {
        name: part
        for name, part in read.items()
        if name not in whole and part != sizes[name] and all(part)
    }


def _end(at: IndexExpr | Value, size: int) -> int:
    """Behind the last element that a coordinate may be, of so many."""
    low, high = bounds(at) if isinstance(at, IndexExpr) else (None, None)
    return size if low is None or low < 0 or high is None else min(high + 1, size)


def cut(definition: Definition, part: tuple[int, int], buffers: Mapping[str, Buffer]) -> Definition:
    """The call that makes so many rows and columns of a product."""
    body, (buffer,) = definition.body, definition.buffers
    assert isinstance(body, ExternCall)
    at = _FACTORS[body.op]
    rows, columns = part
    args = [_narrowed(each, {0: rows, 1: columns}, buffers) for each in body.args[:at]]
    args.append(_narrowed(body.args[at], {0: rows}, buffers))
    args.append(_narrowed(body.args[at + 1], {1: columns}, buffers))
    smaller = replace(buffer, layout=Layout.of([as_index(rows), as_index(columns)]))
    call = replace(body, args=(*args, *body.args[at + 2 :]))
    return replace(definition, buffers=(smaller,), body=call)


def _narrowed(ref: ExternArg, sizes: Mapping[int, int], buffers: Mapping[str, Buffer]) -> ExternArg:
    """What a matrix, or what is spread over one, begins with, in rows (0) and columns (1)."""
    assert isinstance(ref, TensorRef)
    view = ref.view or buffers[ref.buffer].layout
    size = list(view.size)
    for axis, extent in sizes.items():
        place = axis - 2 + len(size)
        if place >= 0 and size[place] is not as_index(1):
            size[place] = as_index(extent)
    return replace(ref, view=Layout(tuple(size), view.stride, view.offset))


class Padded:
    """The values of a graph that have zeros behind what something else holds."""

    def __init__(self, graph: Graph) -> None:
        self._made: dict[str, tuple[Definition, Masked]] = {}
        for definition in graph.definitions:
            body = definition.body
            if isinstance(body, Pointwise) and isinstance(body.value, Masked):
                self._made[definition.buffers[0].name] = definition, body.value

    def without(self, value: Value) -> tuple[Value, Origin]:
        """What is computed of elements, with those that are none of the zeros read of what was
        padded; and where that padding comes from."""
        origin = Origin()

        def leaf(part: Value) -> Value | None:
            nonlocal origin
            if not isinstance(part, Load):
                return None
            found, of_padding = self._within(part)
            origin = origin + of_padding
            return found

        return rewrite(value, leaf, lambda expr: expr), origin

    def _within(self, load: Load) -> tuple[Load, Origin]:
        if load.buffer not in self._made:
            return load, Origin()
        definition, masked = self._made[load.buffer]
        body, inner = definition.body, masked.value
        assert isinstance(body, Pointwise)
        if not isinstance(inner, Load):
            return load, Origin()
        index = [at for at in (*load.index, *inner.index) if isinstance(at, IndexExpr)]
        if len(index) < len(load.index) + len(inner.index):
            return load, Origin()
        places: Substitution = dict(zip(body.ranges, index[: len(load.index)], strict=True))
        if not _holds(masked.mask, places):
            return load, Origin()
        moved = [move(at, places) for at in index[len(load.index) :]]
        return Load(inner.buffer, moved, inner.dtype), definition.origin


def _holds(condition: Value, places: Substitution) -> bool:
    """Whether comparisons of coordinates with numbers hold for all that these may be."""
    match condition:
        case Op("logical_and", (first, second)):
            return _holds(first, places) and _holds(second, places)
        case Op("lt", (IndexValue(expr), Const(number))):
            _, high = bounds(move(expr, places))
            return high is not None and high < number
        case Op("ge", (IndexValue(expr), Const(number))):
            low, _ = bounds(move(expr, places))
            return low is not None and low >= number
    return False
