"""Rows added up in memory of the program's own, as for the gradient of an embedding's weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from torch import fx

from plait_ir_lowering.context import LoweringContext, constant
from plait_ir_lowering.context import cast as converted
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import ExternCall, Layout, Pointwise, TensorRef, row_major
from plait_ir_lowering.ir.index import ZERO, IndexExpr
from plait_ir_lowering.ir.values import Op
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_ir_lowering.torch_types import to_torch_dtype


@lowers("embedding_dense_backward", kind="external call into memory of the program's own")
def embedding_dense_backward(
    ctx: LoweringContext,
    grad: TensorExpr,
    indices: TensorExpr,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Lowered:
    """`index_add` to zeros: the same additions in the same order, and so the same bits.

    ATen's own kernel takes new memory at each call, whose pages cost more than the additions.
    """
    count = math.prod(size.as_int() for size in indices.shape)
    result = ctx.result
    covered = grad.dtype in (DType.f32, DType.f64) and result.device.type == "cpu"
    if not covered or scale_grad_by_freq or not count or not result.numel():
        return None
    width = int(result.shape[1])
    if padding_idx >= 0:
        grad = _without_padding(grad, indices, padding_idx)
    refs = (
        _in_memory(ctx, indices, [count]),
        _in_memory(ctx, grad, [count, width]),
    )
    number = ctx.define(Pointwise((), constant(0, grad.dtype)), result.new_empty(()))
    assert number.ref is not None, "a buffer is in memory"
    zeros = TensorRef(number.ref.buffer, Layout.of([num_weights, width], [0, 0]))
    call = ExternCall("aten::index_add", "out", (zeros, ZERO, *refs, 1), out_variant=True)
    return ctx.define(call, result)


@lowers("index_add", kind="external call into memory of the program's own")
def index_add(
    ctx: LoweringContext,
    x: TensorExpr,
    axis: int,
    indices: TensorExpr,
    source: TensorExpr,
    alpha: Any,
) -> Lowered:
    """A copy of `x` to which rows are added, or `x` itself where nothing else needs it."""
    nodes = [ctx.current.args[position] for position in (0, 2, 3)]
    covered = x.dtype in (DType.f32, DType.f64) and ctx.result.device.type == "cpu"
    if not covered or not ctx.result.numel() or not isinstance(alpha, (int, float)):
        return None
    given, where, rows = (
        ctx.realize(tensor, cast(fx.Node, node).meta["val"])
        for tensor, node in zip((x, indices, source), nodes, strict=True)
    )
    arguments = (given, axis, where, rows, alpha)
    return ctx.define(ExternCall("aten::index_add", "out", arguments, out_variant=True), ctx.result)


def _without_padding(grad: TensorExpr, indices: TensorExpr, padding_idx: int) -> TensorExpr:
    """Rows of zeros where the index is that of the padding, which gets no gradient."""
    places = [dim.expr for dim in grad.dims]
    index = converted(indices.at(places[:-1]), DType.i64)
    is_padding = Op("eq", [index, constant(padding_idx, DType.i64)])
    value = Op("where", [is_padding, constant(0, grad.dtype), grad.value])
    return TensorExpr(grad.dims, value)


def _in_memory(ctx: LoweringContext, x: TensorExpr, size: Sequence[int]) -> TensorRef:
    """The elements of `x`, in row-major order, as a tensor of another shape."""
    if x.ref is not None and x.ref.dtype is None:
        layout = ctx.buffers[x.ref.buffer].layout if x.ref.view is None else x.ref.view
        if layout.is_row_major:
            return TensorRef(x.ref.buffer, Layout.of(size, None, layout.offset))
    dims = dimensions(size)
    position: IndexExpr = ZERO
    for dim, stride in zip(dims, row_major([d.extent for d in dims]), strict=True):
        position = position + dim.expr * stride
    places = [
        position // stride % extent if extent.as_int() > 1 else ZERO
        for extent, stride in zip(x.shape, row_major(x.shape), strict=True)
    ]
    like = ctx.result.new_empty(tuple(size), dtype=to_torch_dtype(x.dtype))
    return ctx.realize(TensorExpr(dims, x.at(places)), like)
