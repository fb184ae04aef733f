"""Elements of tensors that are given where an operator takes a number."""

from __future__ import annotations

from plait_ir_lowering.context import LoweringContext, cast
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import ZERO
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.tensors import NumberExpr, TensorExpr


@lowers("_local_scalar_dense")
def element(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    """The tensor's one element, as Python reads it."""
    if not x.dtype.is_float:
        return None
    return NumberExpr(cast(x.at([ZERO] * len(x.dims)), DType.f64))
