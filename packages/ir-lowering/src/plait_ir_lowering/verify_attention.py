"""What an attention's tensors must be to each other."""

from __future__ import annotations

from collections.abc import Mapping

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Attention, Buffer, Definition, TensorRef, score_dtype
from plait_ir_lowering.ir.index import IndexExpr
from plait_ir_lowering.ir.index_queries import product


def attention_problem(
    definition: Definition, body: Attention, known: Mapping[str, Buffer]
) -> str | None:
    """What is wrong with the shapes and element types of an attention, or None."""
    if len(definition.buffers) != 1:
        return "an attention defines one buffer"
    if not body.ranges:
        return "an attention has no rows"
    made, computed = definition.buffers[0], body.score.dtype
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
    return None


def _matrices(size: tuple[IndexExpr, ...]) -> tuple[IndexExpr, ...]:
    """How many matrices, and their sizes."""
    return (product(size[:-2]), *size[-2:])


def _size(ref: TensorRef, known: Mapping[str, Buffer]) -> tuple[IndexExpr, ...]:
    return (ref.view or known[ref.buffer].layout).size
