"""Attention as programs have it: two products, and the softmax between them."""

from __future__ import annotations

from plait_ir_lowering import (
    SCORE,
    Attention,
    Buffer,
    Definition,
    DType,
    ExternCall,
    IndexExpr,
    Load,
    Local,
    Pointwise,
    TensorRef,
    Value,
    loads_of,
    rewrite,
)
from plait_scheduler.attention_operands import Operands
from plait_scheduler.attention_softmax import Softmax
from plait_scheduler.domains import points, position
from plait_scheduler.makers import Makers
from plait_scheduler.pair_products import is_product, is_whole
from plait_utils import dataclass

_COMPUTED = (DType.f32, DType.f64)
"""What there are kernels for."""


@dataclass(frozen=True, slots=True)
class Match:
    """An attention, and the buffer of scores that it takes the place of."""

    scores: Buffer
    attention: Attention
    sums: tuple[Buffer, ...]
    """What gets the logarithms of the sums of the rows' exponentials, if anything does; or their
    largest scores, and the logarithms of the sums below these."""


def match_of(makers: Makers, definition: Definition) -> Match | None:
    """The attention whose last step a definition is."""
    body = definition.body
    if not is_product(definition) or not isinstance(body, ExternCall):
        return None
    weights, values = body.args
    maker = makers.table.get(weights.buffer) if isinstance(weights, TensorRef) else None
    if maker is None or not isinstance(maker.body, Pointwise) or len(maker.body.ranges) < 2:
        return None
    (buffer,) = maker.buffers
    *ranges, axis = maker.body.ranges
    batches, row = ranges[:-1], ranges[-1]
    if not is_whole(weights, (points(batches), row.extent, axis.extent), buffer):
        return None
    batch = position([var.expr for var in batches], [var.extent for var in batches])
    softmax = Softmax.of(makers, maker.body)
    place = (batch, row.expr, axis.expr)
    product = None if softmax is None else _product(makers, softmax.score, place)
    if softmax is None or product is None or not isinstance(values, TensorRef):
        return None
    scores, queries, keys = product
    score = _over_local(softmax.score, Load(scores.name, place, scores.dtype))
    if score is None:
        return None
    zeros = softmax.is_empty is not None
    if makers.originals:
        operands = Operands(makers.table, makers.buffers)
        queries, keys = makers.widened(operands, queries, keys)
        values = operands.original(values, widened=False)
    attention = Attention(tuple(ranges), axis, queries, keys, values, score, zeros)
    sums = softmax.sums() if makers.gives_sums else ()
    return Match(scores, attention, sums)


def _product(
    makers: Makers, score: Value, place: tuple[IndexExpr, ...]
) -> tuple[Buffer, TensorRef, TensorRef] | None:
    """The product that a score is computed of, read at `place`, and its operands."""
    for load in loads_of([score]):
        maker = makers.table.get(load.buffer)
        if load.index != place or maker is None or not is_product(maker):
            continue
        (buffer,) = maker.buffers
        match maker.body:
            case ExternCall(_, _, (TensorRef() as queries, TensorRef() as keys)):
                return (buffer, queries, keys) if buffer.dtype in _COMPUTED else None
    return None


def _over_local(score: Value, place: Load) -> Value | None:
    """A score over %score in place of a load; None where it reads others of that buffer."""
    local = Local(SCORE, place.dtype)
    found = rewrite(score, lambda value: local if value is place else None, lambda expr: expr)
    others = any(load.buffer == place.buffer for load in loads_of([found]))
    return None if others or found.dtype is not place.dtype else found
