"""Which products of matrices are calls of oneDNN rather than MKL, on CPUs.

Torch multiplies float32 by MKL, which has its best kernels for Intel's processors alone; oneDNN
goes by the instructions that there are. It has no form that writes where it is told to, so a call
allocates its result. Milliseconds on one thread, MKL and oneDNN, rows by terms by columns, with
the matrix of a linear layer:

| | Zen 4 | | Sapphire Rapids | |
|---|---:|---:|---:|---:|
| 256 by 256 by 50257 | 166 | 100 | – | – |
| 256 by 256 by 32000 | 53.8 | 46.5 | 36.0 | 34.5 |
| 128 by 768 by 3072 | 9.11 | 6.68 | 4.93 | 4.76 |
| 512 by 384 by 1536 | 8.14 | 6.93 | 4.16 | 4.18 |
| 256 by 512 by 1024 | 3.55 | 3.00 | – | – |
| 512 by 256 by 1024 | 3.18 | 3.01 | 1.87 | 1.88 |
| 256 by 256 by 688 | 1.18 | 1.15 | 0.64 | 0.63 |
| 200 by 192 by 576 | 0.50 | 0.51 | 0.32 | 0.34 |
| 64 by 256 by 256 | 0.14 | 0.17 | 0.07 | 0.08 |
"""

from __future__ import annotations

import torch

from plait_ir_lowering.context import LoweringContext
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import ExternCall, ExternList, Layout, TensorRef
from plait_ir_lowering.tensors import TensorExpr
from plait_utils import processor_vendor

_VENDORS = frozenset({"AuthenticAMD", "HygonGenuine"})
"""Of processors that MKL is slow on."""
_WORK = 1 << 27
"""Multiply-adds from which on oneDNN's kernels gain enough for a new result in each call: its pages
are in the times above."""
_FEWEST = 64
"""Rows, and terms of a sum, from which on that is so: else memory bounds a product."""


def is_onednn(ctx: LoweringContext, a: TensorExpr, b: TensorExpr) -> bool:
    """Whether oneDNN multiplies these matrices, both of two dimensions, rather than `aten::mm`."""
    wanted = ctx.options.onednn_products
    if wanted is None:
        wanted = not ctx.options.exact and processor_vendor() in _VENDORS
    if not wanted or a.dtype is not DType.f32 or ctx.result.device.type != "cpu":
        return False
    if not _is_available() or torch.get_float32_matmul_precision() != "highest":
        return False  # products of less precision are oneDNN's anyway
    sizes = (*a.shape, b.shape[-1])
    if not all(size.is_constant for size in sizes):
        return False  # it prepares a kernel for each size
    rows, terms, columns = (size.as_int() for size in sizes)
    if min(rows, terms) < _FEWEST or rows * terms * columns < _WORK:
        return False
    return _is_dense(ctx, a, turned=False) and (
        _is_dense(ctx, b, turned=False) or _is_dense(ctx, b, turned=True)
    )


def onednn_call(
    ctx: LoweringContext, a: TensorRef, b: TensorRef, bias: TensorRef | None
) -> ExternCall:
    """The call for what `is_onednn` takes; `bias` is added to each row."""
    view = _layout(ctx, b)
    turned = TensorRef(b.buffer, Layout(view.size[::-1], view.stride[::-1], view.offset), b.dtype)
    args = (a, turned, bias, "none", ExternList(()), "")
    return ExternCall("mkldnn::_linear_pointwise", "", args)


def _is_available() -> bool:
    found = torch.backends.mkldnn
    return bool(found.is_available() and found.enabled)  # type: ignore[no-untyped-call]  # torch's


def _layout(ctx: LoweringContext, ref: TensorRef) -> Layout:
    return ref.view or ctx.buffers[ref.buffer].layout


def _is_dense(ctx: LoweringContext, x: TensorExpr, *, turned: bool) -> bool:
    """Whether a matrix lies row by row in memory; column by column if `turned`. One that is not in
    memory yet will."""
    if x.ref is None:
        return not turned
    layout = _layout(ctx, x.ref)
    if turned:
        layout = Layout(layout.size[::-1], layout.stride[::-1], layout.offset)
    return layout.is_row_major
