"""Which products of matrices are loops rather than calls, on CPUs.

Back ends sum products of few rows in tiles that read a matrix once, and do at once what follows. A
call of torch's kernels costs some microseconds, and these take a matrix apart before they multiply
it. The limits are where loops took less time by 5% and more: the README of plait-cpp-codegen has
the table, `conformance/products.py` there measures it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from plait_ir_lowering.context import LoweringContext
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import IndexExpr, Var, as_index
from plait_ir_lowering.ir.index_queries import product, stride_of
from plait_ir_lowering.ir.values import Load
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_utils import dataclass

_ANY = 1 << 62


@dataclass(frozen=True, slots=True)
class Limit:
    """Products of up to so many rows are loops where a matrix has up to so many elements."""

    rows: int
    elements: int = _ANY
    fewest: int = 1
    """Rows from which on."""


_FLOATS = (Limit(8), Limit(16, 1 << 16), Limit(32, 1 << 14), Limit(64, 1 << 12))
LIMITS: Mapping[DType, tuple[Limit, ...]] = MappingProxyType(
    {
        DType.f32: _FLOATS,
        DType.f64: _FLOATS,
        DType.bf16: (Limit(1), Limit(16, 1 << 16)),
        DType.i8: (Limit(8, fewest=2), Limit(1, 1 << 16), Limit(16, 1 << 12)),
    }
)
_MOST_ROWS_OF_BATCHES = 7
"""Of more, two products may be an attention, which schedulers find as calls."""
_FEWEST_TERMS, _FEWEST_COLUMNS = 16, 8
"""Less does not fill vectors."""
_WIDEST = 64
"""A matrix has at most so many times as many columns as rows, where its rows lie in memory."""


def is_own(ctx: LoweringContext, a: TensorExpr, b: TensorExpr) -> bool:
    """Whether the product over the last axis of `a` and the last but one of `b` is loops."""
    if not ctx.options.own_products or ctx.result.device.type != "cpu":
        return False
    inner, columns = a.shape[-1], b.shape[-1]
    sizes = (*a.shape, columns)
    if not all(each.is_constant for each in sizes) or product(sizes).constant == 0:
        return False
    rows, elements = a.shape[-2].as_int(), (inner * columns).as_int()
    if inner.as_int() < _FEWEST_TERMS or columns.as_int() < _FEWEST_COLUMNS:
        return False
    if len(a.shape) > 2 and rows > _MOST_ROWS_OF_BATCHES:
        return False
    limits = LIMITS.get(a.dtype, ())
    if not any(x.fewest <= rows <= x.rows and elements <= x.elements for x in limits):
        return False
    along, across = _strides(ctx, b)
    one = as_index(1)
    if a.dtype is DType.i8:  # by instructions that add four neighbours
        return along is one and torch.cpu._is_vnni_supported()
    return along is one or (across is one and columns.as_int() <= _WIDEST * inner.as_int())


def _strides(ctx: LoweringContext, b: TensorExpr) -> tuple[IndexExpr | None, IndexExpr | None]:
    """How far apart the elements of a column, and of a row, are in memory; None where none are."""
    dims = dimensions(b.shape)
    value = b.at([dim.expr for dim in dims])
    if not isinstance(value, Load) or value.operands:
        return None, None
    layout = ctx.buffers[value.buffer].layout
    offset = layout.linear([at for at in value.index if isinstance(at, IndexExpr)])

    def stride(var: Var) -> IndexExpr | None:
        return stride_of(offset, var)

    return stride(dims[-2]), stride(dims[-1])
