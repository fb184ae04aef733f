"""Room behind the rows of matrices that products would write or read at awkward places.

On a CPU products of f32 into rows that begin at no multiple of 32 bytes take up to twice as long as
into rows that do. Where only loops read the product, which do so by coordinates, its rows get room
behind them. On a GPU products of 16-bit floats whose rows begin at no multiple of 16 bytes go
without the copy engines that feed tensor cores, and take up to seven times as long: there what
loops compute for a product gets room, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    Pointwise,
    Reduction,
    Scatter,
    TensorRef,
    as_index,
)
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.nodes import final_reads, reads_of
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.sizes import estimate

PRODUCTS = frozenset(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"))
"""Calls that multiply matrices; their out variants write to any strides."""
_BEGIN = 8
"""Rows then begin at multiples of 32 bytes, which vectors of AVX2 have; of 16-bit floats at
multiples of 16, which a GPU's copy engines want."""
_LEAST_COLUMNS = 256
_LEAST_ROWS = 64
"""Smaller products gain nothing; of rows whose number is open there are taken to be many."""


def pad_products(graph: Graph, options: SchedulerOptions, log: DecisionLog) -> Graph:
    """`graph` with room behind the rows of products, and of their factors, that gain by it."""
    if not options.pad_products:
        return graph
    factors = _factors(graph)
    padded = {b.name: b for d in graph.definitions if (b := _padded(d, factors)) is not None}
    if not padded:
        return graph
    taken = _read_as_they_lie(graph, padded)
    for name, buffer in [*padded.items()]:
        obstacle = "something else than loops reads it" if name in taken else None
        reason = (
            f"rows of {buffer.layout.size[-1]} would begin at no multiple of {_unit(buffer)} bytes"
        )
        if not log.settle(DecisionKind.PAD, (name, ""), obstacle, reason):
            del padded[name]
    return replace(graph, definitions=tuple(_relaid(d, padded) for d in graph.definitions))


def _unit(buffer: Buffer) -> int:
    return _BEGIN * buffer.dtype.itemsize


def _factors(graph: Graph) -> frozenset[str]:
    """What products of matrices multiply."""
    return frozenset(
        ref.buffer
        for d in graph.definitions
        if isinstance(d.body, ExternCall) and d.body.op in PRODUCTS
        for ref in _refs(d.body)
    )


def _refs(call: ExternCall) -> Iterator[TensorRef]:
    return (arg for arg in call.args if isinstance(arg, TensorRef))


def _padded(definition: Definition, factors: frozenset[str]) -> Buffer | None:
    """What is computed, with room behind its rows; None where nothing gains by it."""
    body = definition.body
    if len(definition.buffers) != 1:
        return None
    (buffer,) = definition.buffers
    if isinstance(body, ExternCall):
        if body.op not in PRODUCTS or not body.out_variant:
            return None
        if not gains_by_begins(buffer) and not begins_badly(buffer):
            return None
    else:
        is_loop = isinstance(body, Pointwise | Reduction)
        if not is_loop or buffer.name not in factors or not begins_badly(buffer):
            return None
    size = buffer.layout.size
    if not buffer.layout.is_row_major or begin_well([size[-1]]):
        return None
    return replace(buffer, layout=Layout.of(size, padded_strides(size)))


def begins_badly(matrix: Buffer) -> bool:
    """Whether a matrix of a GPU is one of 16-bit floats, large, whose rows begin at no multiple of
    16 bytes."""
    size = matrix.layout.size
    if matrix.device.type != "cuda" or not matrix.dtype.is_reduced_precision or len(size) < 2:
        return False
    if not matrix.layout.is_row_major or not size[-1].is_constant or begin_well([size[-1]]):
        return False
    return estimate(size[-2]) >= _LEAST_ROWS and size[-1].as_int() >= _LEAST_COLUMNS


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


def padded_strides(size: Sequence[IndexExpr]) -> list[IndexExpr]:
    """Row-major strides, with room behind the rows, whose length is known."""
    columns = size[-1].as_int()
    strides = [as_index(columns + -columns % _BEGIN), as_index(1)]
    for extent in reversed(size[1:-1]):
        strides.insert(0, strides[0] * extent)
    return strides


def read_as_they_lie(graph: Graph) -> frozenset[str]:
    """The buffers whose memory is handed out, given to calls, or written over."""
    return _read_as_they_lie(graph, {})


def _read_as_they_lie(graph: Graph, padded: Mapping[str, Buffer]) -> frozenset[str]:
    """The same; without those of `padded` on GPUs that products read as matrices."""
    names = set(final_reads(graph))
    for definition in graph.definitions:
        body = definition.body
        if isinstance(body, ExternCall) and body.op in PRODUCTS:
            names.update(ref.buffer for ref in _refs(body) if not _follows(ref, padded))
        elif isinstance(body, ExternCall | Attention | Mixture):
            names.update(reads_of(definition))
        elif isinstance(body, Scatter):
            names.add(body.target)
    return frozenset(names)


def _relaid(definition: Definition, padded: Mapping[str, Buffer]) -> Definition:
    """A definition whose buffers, and views of buffers, lie as in `padded`."""
    body = definition.body
    if isinstance(body, ExternCall) and body.op in PRODUCTS:
        args = tuple(
            _in_rows(arg, padded[arg.buffer]) or arg
            if isinstance(arg, TensorRef) and arg.buffer in padded
            else arg
            for arg in body.args
        )
        body = replace(body, args=args)
    buffers = tuple(padded.get(buffer.name, buffer) for buffer in definition.buffers)
    return replace(definition, buffers=buffers, body=body)


def _follows(ref: TensorRef, padded: Mapping[str, Buffer]) -> bool:
    """Whether what a product of a GPU reads may get room behind its rows."""
    buffer = padded.get(ref.buffer)
    is_on_gpu = buffer is not None and buffer.device.type == "cuda"
    return is_on_gpu and buffer is not None and _in_rows(ref, buffer) is not None


def _in_rows(ref: TensorRef, buffer: Buffer) -> TensorRef | None:
    """A view of a dense matrix, as one of `buffer`, which has room behind the rows; None where it
    goes across rows."""
    if ref.view is None:
        return ref
    dense, room = buffer.layout.size[-1].as_int(), buffer.layout.stride[-2].as_int()
    if ref.dtype is not None or ref.view.offset.terms:
        return None
    strides: list[IndexExpr] = []
    for extent, stride in zip(ref.view.size, ref.view.stride, strict=True):
        if extent is as_index(1):
            strides.append(stride)
        elif all(coefficient % dense == 0 for _, coefficient in stride.terms):
            strides.append(stride // dense * room)
        elif stride is as_index(1) and extent.is_constant and extent.as_int() <= dense:
            strides.append(stride)
        else:
            return None
    return replace(ref, view=Layout.of(ref.view.size, strides))
