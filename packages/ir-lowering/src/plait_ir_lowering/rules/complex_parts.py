"""Complex tensors from their parts, and the parts of complex tensors."""

from __future__ import annotations

from plait_ir_lowering.context import LoweringContext
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import ZERO, as_index
from plait_ir_lowering.ir.values import Const, IndexValue, Op
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.complex_numbers import conjugate, pair, parts, polar
from plait_ir_lowering.rules.elementwise import elementwise
from plait_ir_lowering.tensors import TensorExpr, dimensions


@lowers("view_as_real", "view_as_real_copy")
def view_as_real(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    """The parts along a new last dimension."""
    dims = dimensions(ctx.result.shape)
    real, imaginary = parts(x.at([dim.expr for dim in dims[:-1]]))
    is_real = Op("lt", [IndexValue(dims[-1].expr), Const(1, DType.i64)])
    return TensorExpr(dims, Op("where", [is_real, real, imaginary]))


@lowers("view_as_complex", "view_as_complex_copy")
def view_as_complex(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    dims = dimensions(ctx.result.shape)
    places = [dim.expr for dim in dims]
    return TensorExpr(dims, pair(x.at([*places, ZERO]), x.at([*places, as_index(1)])))


@lowers("complex")
def complex_of(ctx: LoweringContext, real: TensorExpr, imaginary: TensorExpr) -> Lowered:
    if real.dtype is not imaginary.dtype or real.dtype not in (DType.f32, DType.f64):
        return None
    return elementwise(ctx, [real, imaginary], pair, by_parts=True)


@lowers("polar")
def polar_of(ctx: LoweringContext, size: TensorExpr, turn: TensorExpr) -> Lowered:
    if size.dtype is not turn.dtype or size.dtype not in (DType.f32, DType.f64):
        return None
    return elementwise(ctx, [size, turn], polar, by_parts=True)


@lowers("_conj", "_conj_copy", "_conj_physical", "conj_physical")
def conj(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return TensorExpr(x.dims, conjugate(x.value))


@lowers("_neg_view", "_neg_view_copy")
def negative(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return elementwise(ctx, [x], lambda a: Op("neg", [a]))
