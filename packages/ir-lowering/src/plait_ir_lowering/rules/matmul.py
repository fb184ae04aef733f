"""Matrix products: external calls, or loops where the call costs more than the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import ExternCall, TensorRef
from plait_ir_lowering.ir.index import Var
from plait_ir_lowering.ir.index_queries import product
from plait_ir_lowering.ir.ops import PARTS, ReductionKind
from plait_ir_lowering.ir.values import Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.complex_formulas import op
from plait_ir_lowering.rules.onednn_products import is_onednn, onednn_call
from plait_ir_lowering.rules.own_products import is_own
from plait_ir_lowering.rules.reductions import complex_sum, products_dtype
from plait_ir_lowering.tensors import TensorExpr, dimensions


def _ref(ctx: LoweringContext, x: TensorExpr, position: int) -> TensorRef:
    return ctx.realize(x, ctx.traced(position))


def _is_small(ctx: LoweringContext, a: TensorExpr, b: TensorExpr) -> bool:
    work = product([*a.shape, b.shape[-1]])
    return work.is_constant and work.constant <= ctx.options.small_matmul_work


def _is_loops(ctx: LoweringContext, a: TensorExpr, b: TensorExpr) -> bool:
    return _is_small(ctx, a, b) or is_own(ctx, a, b)


def _multiplies(ctx: LoweringContext, a: TensorExpr) -> bool:
    """Whether ATen multiplies matrices of such elements on this device, and does not raise."""
    is_on_cpu = ctx.result.device.type == "cpu"
    return a.dtype.is_float or (is_on_cpu and a.dtype is not DType.bool_)


def _scales(a: TensorExpr, *factors: Any) -> bool:
    """Whether they multiply the elements as they are: integers by integers alone."""
    return not a.dtype.is_integer or all(type(factor) is int for factor in factors)


def _product(
    ctx: LoweringContext, a: TensorExpr, b: TensorExpr, wide: DType | None = None
) -> TensorExpr:
    """The product over the last axis of `a` and the last but one of `b`, as loops."""
    batch = a.shape[:-2]
    dims = dimensions([*batch, a.shape[-2], b.shape[-1]])
    inner = Var("r0", a.shape[-1])
    wide = wide or products_dtype(a.dtype)
    lead = [dim.expr for dim in dims[: len(batch)]]
    row, column = dims[-2].expr, dims[-1].expr
    left = cast(a.at([*lead, row, inner.expr]), wide)
    right = cast(b.at([*lead, inner.expr, column]), wide)
    terms = TensorExpr((*dims, inner), op("mul", [left, right]))
    if wide in PARTS:
        return complex_sum(ctx, terms, [len(dims)], False)
    return ctx.reduce(terms, [len(dims)], ReductionKind.SUM, keepdim=False, name="product")


def _finish(ctx: LoweringContext, product: TensorExpr, compute: Any = None) -> TensorExpr:
    dims = dimensions(product.shape)
    value = product.at([dim.expr for dim in dims])
    return ctx.pointwise(dims, compute(value, dims) if compute else value)


def _call(ctx: LoweringContext, op: str, args: tuple[Any, ...]) -> TensorExpr:
    return ctx.define(ExternCall(f"aten::{op}", "out", args, out_variant=True), ctx.result)


@lowers("mm", kind="external call, loops if small")
def mm(ctx: LoweringContext, a: TensorExpr, b: TensorExpr) -> Lowered:
    if a.dtype is not b.dtype or not _multiplies(ctx, a):
        return None  # an error, which ATen raises
    if _is_loops(ctx, a, b):
        return _finish(ctx, _product(ctx, a, b))
    return ctx.define(_mm(ctx, a, b, 0), ctx.result)


def _mm(ctx: LoweringContext, a: TensorExpr, b: TensorExpr, position: int) -> ExternCall:
    """The call that multiplies two matrices; `position` is that of the first argument."""
    refs = (_ref(ctx, a, position), _ref(ctx, b, position + 1))
    if is_onednn(ctx, a, b):
        return onednn_call(ctx, *refs, None)
    return ExternCall("aten::mm", "out", refs, out_variant=True)


@lowers("_int_mm", kind="external call, loops if small")
def int_mm(ctx: LoweringContext, a: TensorExpr, b: TensorExpr) -> Lowered:
    """Bytes, whose products are added in i32."""
    if not a.dtype is b.dtype is DType.i8 or ctx.result.device.type != "cpu":
        return None
    if _is_loops(ctx, a, b):
        return _finish(ctx, _product(ctx, a, b, DType.i32))
    return _call(ctx, "_int_mm", (_ref(ctx, a, 0), _ref(ctx, b, 1)))


@lowers("bmm", kind="external call, loops if small")
def bmm(ctx: LoweringContext, a: TensorExpr, b: TensorExpr) -> Lowered:
    if a.dtype is not b.dtype or not _multiplies(ctx, a):
        return None
    if _is_loops(ctx, a, b):
        return _finish(ctx, _product(ctx, a, b))
    return _call(ctx, "bmm", (_ref(ctx, a, 0), _ref(ctx, b, 1)))


def _adding(bias: TensorExpr, beta: Any, alpha: Any) -> Callable[[Value, Sequence[Var]], Value]:
    """What makes `beta * bias + alpha * product` of the product at a point."""

    def add_bias(value: Value, dims: Sequence[Var]) -> Value:
        places = [dim.expr for dim in dims]
        scaled = value if alpha == 1 else op("mul", [value, constant(alpha, value.dtype)])
        if beta == 0:
            return scaled
        addend: Value = cast(bias.broadcast_at(places), value.dtype)
        if beta != 1:
            addend = op("mul", [addend, constant(beta, value.dtype)])
        return op("add", [scaled, addend])

    return add_bias


@lowers("addmm", kind="external call with fused addition, loops if small", looks_ahead=True)
def addmm(
    ctx: LoweringContext, bias: TensorExpr, a: TensorExpr, b: TensorExpr, beta: Any, alpha: Any
) -> Lowered:
    if not _multiplies(ctx, a) or not a.dtype is b.dtype is bias.dtype:
        return None
    if not _scales(a, beta, alpha):
        return None
    if _is_loops(ctx, a, b):
        return _finish(ctx, _product(ctx, a, b), _adding(bias, beta, alpha))
    if a.dtype.is_reduced_precision or not ctx.feeds_loops:
        refs = (_ref(ctx, bias, 0), _ref(ctx, a, 1), _ref(ctx, b, 2))
        adds_rows = beta == alpha == 1 and bias.shape == b.shape[1:]
        if adds_rows and is_onednn(ctx, a, b):
            return ctx.define(onednn_call(ctx, *refs[1:], refs[0]), ctx.result)
        return _call(ctx, "addmm", (*refs, beta, alpha))
    product = ctx.define(_mm(ctx, a, b, 1), ctx.result, "mm")
    return _finish(ctx, product, _adding(bias, beta, alpha))


@lowers("baddbmm", kind="external call, loops if small")
def baddbmm(
    ctx: LoweringContext, x: TensorExpr, a: TensorExpr, b: TensorExpr, beta: Any, alpha: Any
) -> Lowered:
    if not _multiplies(ctx, a) or not a.dtype is b.dtype is x.dtype:
        return None
    if not _scales(a, beta, alpha):
        return None
    if _is_loops(ctx, a, b):
        return _finish(ctx, _product(ctx, a, b), _adding(x, beta, alpha))
    refs = (_ref(ctx, x, 0), _ref(ctx, a, 1), _ref(ctx, b, 2))
    return _call(ctx, "baddbmm", (*refs, beta, alpha))
