"""Loops without points, and reads of tensors without elements, of which no kernel is left.

    sum over r0: 0 of v            is  0, and other reductions over nothing what is neutral in them
    v at no points                 is  a constant at none: what v reads is needed no more
    x[i0, 3], where x is empty     is  a constant: it stands under a mask that never holds

A tensor without elements may have no address, and index expressions over loops without points
become constants, so what kernels read must not hang on its being never reached. A checked index
into such a tensor fails, and still has to: what is left of the read is the check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from types import MappingProxyType

from plait_ir_lowering import (
    Buffer,
    CheckedIndex,
    Const,
    Definition,
    DType,
    ExternCall,
    Graph,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Masked,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    Scan,
    Scatter,
    Sort,
    Value,
    Var,
    as_index,
    bounds,
    loads_of,
    post_order,
    rewrite,
)
from plait_scheduler.domains import points
from plait_scheduler.split import neutral

_NONE = as_index(0)
_PARTS = MappingProxyType({DType.c64: DType.f32, DType.c128: DType.f64})
"""The type of the parts of complex numbers."""


def without_empty_loops(graph: Graph) -> Graph:
    """`graph` with constants in place of such loops and reads.

    Sizes that only a call knows, and that may be 0, are asked for where an index into them is
    checked: its read is under a mask then. Elsewhere the loop around a read has no points where the
    tensor has no elements.
    """
    layouts = {buffer.name: buffer.layout for buffer in graph.inputs}
    layouts |= {b.name: b.layout for d in graph.definitions for b in d.buffers}
    definitions = [each for d in graph.definitions for each in _rewritten(d, layouts)]
    return replace(graph, definitions=tuple(definitions))


def is_empty(layout: Layout) -> bool:
    """Whether a tensor is known to have no elements."""
    return layout.numel is _NONE


def _rewritten(definition: Definition, layouts: Mapping[str, Layout]) -> Iterator[Definition]:
    """A definition without such loops and reads: one for each of its buffers if these are empty."""
    body = definition.body
    if isinstance(body, ExternCall):
        yield definition
    elif all(is_empty(buffer.layout) for buffer in definition.buffers):
        for buffer in definition.buffers:
            yield Definition((buffer,), _nothing(buffer), definition.origin)
    elif isinstance(body, Reduction) and points(body.reduction_ranges) is _NONE:
        yield replace(definition, body=Pointwise(body.ranges, _identity(body)))
    elif isinstance(body, Pointwise | Reduction | Scan | Sort):
        value = _without_empty_reads(body.value, layouts)
        yield (
            definition
            if value is body.value
            else replace(definition, body=replace(body, value=value))
        )
    elif isinstance(body, Scatter):
        scatter = _scatter(body, layouts)
        yield definition if scatter == body else replace(definition, body=scatter)
    else:
        yield definition


def _identity(body: Reduction) -> Value:
    """What a reduction over nothing gives: of none the first largest is at 0, as nowhere else."""
    if body.kind in (ReductionKind.ARGMAX, ReductionKind.ARGMIN):
        return Const(0, DType.i64)
    return Const(neutral(body.kind, body.value.dtype), body.value.dtype)


def _nothing(buffer: Buffer) -> Pointwise:
    dims = tuple(Var(f"i{axis}", size) for axis, size in enumerate(buffer.layout.size))
    return Pointwise(dims, _zero(buffer.dtype))


def _scatter(body: Scatter, layouts: Mapping[str, Layout]) -> Scatter:
    index = tuple(
        _without_empty_reads(at, layouts) if isinstance(at, Value) else at for at in body.index
    )
    return replace(body, index=index, value=_without_empty_reads(body.value, layouts))


def _without_empty_reads(value: Value, layouts: Mapping[str, Layout]) -> Value:
    if not any(_may_be_empty(load, layouts[load.buffer]) for load in loads_of([value])):
        return value

    def leaf(part: Value) -> Value | None:
        if not isinstance(part, Load) or not _may_be_empty(part, layouts[part.buffer]):
            return None
        layout = layouts[part.buffer]
        if is_empty(layout):
            return _checks(part)
        some = Op("gt", [IndexValue(layout.numel), Const(0, DType.i64)])
        return Masked(some, part, _checks(part))

    return rewrite(value, leaf, _same)


def _may_be_empty(load: Load, layout: Layout) -> bool:
    """Whether it is known to read of nothing, or does where a call gives a size of 0."""
    if is_empty(layout):
        return True
    checked = (
        size
        for at, size in zip(load.index, layout.size, strict=True)
        if isinstance(at, Value) and _is_checked(at)
    )
    return any((bounds(size)[0] or 0) < 1 for size in checked)


def _is_checked(place: Value) -> bool:
    return any(isinstance(part, CheckedIndex) for part in post_order([place]))


def _checks(load: Load) -> Value:
    """A value of a load's type for which its indices are checked, and nothing is read."""
    checked = [at for at in load.operands if _is_checked(at)]
    if not checked:
        return _zero(load.dtype)
    total = reduce(lambda one, other: Op("add", [one, other]), checked)
    part = _PARTS.get(load.dtype)
    if part is None:
        return Op("to", [total], load.dtype)
    return Op("complex", [Op("to", [total], part), Const(0, part)])


def _zero(dtype: DType) -> Value:
    part = _PARTS.get(dtype)
    return Const(0, dtype) if part is None else Op("complex", [Const(0, part), Const(0, part)])


def _same(expr: IndexExpr) -> IndexExpr:
    return expr
