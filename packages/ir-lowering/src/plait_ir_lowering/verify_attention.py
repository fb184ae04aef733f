"""What the tensors of an attention, or of a mixture, must be to each other."""

from __future__ import annotations

from collections.abc import Mapping

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import (
    Attention,
    Buffer,
    Definition,
    Mixture,
    TensorRef,
    place_name,
    score_dtype,
)
from plait_ir_lowering.ir.index import IndexExpr
from plait_ir_lowering.ir.index_queries import product
from plait_ir_lowering.ir.values import Local


def attention_problem(
    definition: Definition, body: Attention, known: Mapping[str, Buffer]
) -> str | None:
    """What is wrong with the shapes and element types of an attention, or None."""
    if not body.ranges:
        return "an attention has no rows"
    (made, *sums), computed = definition.buffers, body.score.dtype
    queries, keys, values = (known[ref.buffer] for ref in body.refs)
    if any(ref.dtype is not None for ref in body.refs):
        return "an attention reads elements as another type"
    if computed not in (DType.f32, DType.f64):
        return f"an attention computes scores of {computed}"
    if queries.dtype is not keys.dtype or score_dtype(queries.dtype) is not computed:
        return f"{computed} scores of {queries.dtype} and {keys.dtype}"
    if not values.dtype.is_float or made.dtype is not values.dtype:
        return f"an attention to {values.dtype} gives {made.dtype}"
    *batches, row = body.ranges
    sizes = [_size(ref, known) for ref in body.refs]
    if any(len(size) < 3 for size in (*sizes, made.layout.size)):
        return "an attention reads and gives batches of matrices"
    if len(body.spans) not in (0, 3):
        return "an attention is told a first key, a last one, and how many"
    wanted = product([var.extent for var in batches]), row.extent, body.axis.extent
    (batch, rows, depth), (first, inner, columns), (second, length, width) = map(_matrices, sizes)
    if (batch, rows, columns) != wanted:
        return f"scores of {batch}, {rows}, {columns} over other loops"
    if (first, inner) != (batch, depth) or (second, length) != (batch, columns):
        return "an attention multiplies matrices whose sizes differ"
    if _matrices(made.layout.size) != (batch, rows, width):
        return "an attention gives another shape than the buffer's"
    if not sums:
        return None
    number = product([batch, rows])
    if len(sums) > 1 or not sums[0].layout.is_row_major or sums[0].layout.numel is not number:
        return "an attention gives its rows, and the sums of these in one dense buffer"
    return None if sums[0].dtype is computed else f"sums of {computed} scores in {sums[0].dtype}"


def mixture_problem(
    definition: Definition, body: Mixture, known: Mapping[str, Buffer]
) -> str | None:
    """What is wrong with the shapes and element types of a mixture, or None."""
    weights, places = body.parts
    if not body.ranges or not body.factors:
        return "a mixture has rows, and weights of products"
    if not len(definition.buffers) == len(body.values) + len(body.sums) == len(weights):
        return "a mixture has values or a sum, and weights, for each buffer"
    named = [at.name for load in body.sums if load for at in load.index if isinstance(at, Local)]
    if named != [place_name(number) for number in range(len(places))]:
        return "a mixture adds to places that it computes, each named once"
    if any(ref.dtype is not None for ref in body.refs):
        return "a mixture reads elements as another type"
    if len(body.spans) not in (0, 3):
        return "a mixture is told a first place, a last one, and how many"
    computed = weights[0].dtype
    if computed not in (DType.f32, DType.f64) or any(w.dtype is not computed for w in weights):
        return "weights of a mixture have one type, f32 or f64"
    if any(score_dtype(known[ref.buffer].dtype) is not computed for ref in body.refs):
        return f"a mixture with weights of {computed} multiplies tensors of another type"
    every = [_size(ref, known) for ref in body.refs]
    every += [buffer.layout.size for buffer in definition.buffers[: len(body.values)]]
    if any(len(size) < 3 for size in every):
        return "a mixture reads and gives batches of matrices"
    *batches, row = body.ranges
    given = product([var.extent for var in batches])
    batch = given if body.group is None else given * body.group.extent
    for left, right in body.factors:
        first, second = (_matrices(_size(ref, known)) for ref in (left, right))
        if first[:2] != (batch, row.extent) or second != (batch, first[2], body.axis.extent):
            return "factors of a mixture have other sizes than its loops, or than each other"
    for ref, buffer in zip(body.values, definition.buffers, strict=False):
        mixed, made = _matrices(_size(ref, known)), _matrices(buffer.layout.size)
        if mixed[:2] != (batch, body.axis.extent) or made != (given, row.extent, mixed[2]):
            return f"values of a mixture have another shape than its loops, or than {buffer.name}"
        if not buffer.dtype.is_float:
            return f"a mixture gives {buffer.dtype}"
    for place, buffer in zip(body.sums, definition.buffers[len(body.values) :], strict=True):
        if buffer.dtype is not computed:
            return f"sums of weights of {computed} in {buffer.dtype}"
        if place is not None:
            start = known.get(place.buffer)
            if start is None or (start.dtype, start.layout) != (buffer.dtype, buffer.layout):
                return f"{buffer.name} does not lie in memory as {place.buffer}"
        elif not buffer.layout.is_row_major or buffer.layout.numel is not given * row.extent:
            return f"{buffer.name} is not dense, with one element for each row"
    return None


def _matrices(size: tuple[IndexExpr, ...]) -> tuple[IndexExpr, ...]:
    """How many matrices, and their sizes."""
    return (product(size[:-2]), *size[-2:])


def _size(ref: TensorRef, known: Mapping[str, Buffer]) -> tuple[IndexExpr, ...]:
    return (ref.view or known[ref.buffer].layout).size
