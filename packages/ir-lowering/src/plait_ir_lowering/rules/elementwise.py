"""Broadcasting and type promotion, shared by the elementwise rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion
from torch._prims_common import elementwise_dtypes

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import Value
from plait_ir_lowering.tensors import NumberExpr, TensorExpr, dimensions
from plait_ir_lowering.torch_types import from_torch_dtype, to_torch_dtype

Compute = Callable[..., Value]
"""From operand values, all of the computation dtype, to the result."""


def computation_dtype(operands: Sequence[Any], promotion: Promotion) -> DType:
    """The dtype that torch computes in: f32 for bf16 and f16, else the promoted one."""
    stand_ins = [_stand_in(operand) for operand in operands if operand is not None]
    computed, _ = elementwise_dtypes(*stand_ins, type_promotion_kind=promotion)
    return from_torch_dtype(computed)


def _stand_in(operand: Any) -> Any:
    """A meta tensor of the operand's dtype and rank, or a number, for torch's promotion rules."""
    if isinstance(operand, TensorExpr):
        rank = len(operand.dims)
        return torch.empty([1] * rank, dtype=to_torch_dtype(operand.dtype), device="meta")
    if isinstance(operand, NumberExpr):
        return 0.5
    return operand


def common_dtype(operands: Sequence[Any]) -> DType:
    """The dtype that torch promotes the operands to, before any widening."""
    stand_ins = [_stand_in(operand) for operand in operands if operand is not None]
    _, common = elementwise_dtypes(*stand_ins, type_promotion_kind=Promotion.DEFAULT)
    return from_torch_dtype(common)


def operand_values(
    operands: Sequence[Any], dims: Sequence[Any], dtype: DType, scalars: DType | None = None
) -> list[Value]:
    """Each operand at the point `dims`, as `dtype`; numbers are rounded to `scalars` first."""
    places = [dim.expr for dim in dims]
    values: list[Value] = []
    for operand in operands:
        if isinstance(operand, TensorExpr):
            values.append(cast(operand.broadcast_at(places), dtype))
        else:
            values.append(cast(constant(operand, scalars or dtype), dtype))
    return values


def elementwise(
    ctx: LoweringContext,
    operands: Sequence[Any],
    compute: Compute,
    promotion: Promotion = Promotion.DEFAULT,
    *,
    narrow_scalars: bool = False,
    wide_elements: Sequence[int] = (),
    by_parts: bool = False,
) -> TensorExpr | None:
    """The node's result: `compute` of the broadcast operands, at each point.

    Calls with complex numbers are declined unless `by_parts`: then `compute` takes them.

    With `narrow_scalars`, numbers among the operands of a bf16 or f16 op are rounded to its
    dtype first. ATen does so in additions, comparisons and remainders; it multiplies and
    divides by the f32 number. The element of a tensor without dimensions is rounded in every
    operator on a CPU, but for the operands at the places `wide_elements`: second factors and
    divisors.
    """
    dtype = computation_dtype(operands, promotion)
    if not by_parts and (dtype.kind == "complex" or ctx.result.is_complex()):
        return None
    dims = dimensions(ctx.result.shape)
    common = common_dtype(operands) if dtype is DType.f32 else dtype
    narrow = common if common.is_reduced_precision else None
    values = operand_values(operands, dims, dtype, narrow if narrow_scalars else None)
    if narrow is not None and ctx.result.device.type == "cpu":
        for place, operand in enumerate(operands):
            alone = isinstance(operand, TensorExpr) and not operand.dims
            if alone and operand.dtype is not narrow and place not in wide_elements:
                values[place] = cast(cast(operand.value, narrow), dtype)
    return ctx.pointwise(dims, compute(*values))


def through(value: Value, dtype: DType) -> Value:
    """`value` rounded to a narrower dtype."""
    return cast(cast(value, dtype), value.dtype)
