"""Images of another size, each element a sum of near ones with weights.

Weights are values of the loop: those along one axis are computed once for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import IndexValue, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.gathering import Place, as_value, gathered, narrow, nothing, readable
from plait_ir_lowering.rules.image_axes import ImageAxis, image_axes
from plait_ir_lowering.rules.interpolation import cubic_weights
from plait_ir_lowering.rules.reductions import accumulation_dtype
from plait_ir_lowering.tensors import TensorExpr

Taps = Sequence[tuple[Place, Value]]
"""The elements of one axis that make up a result, each with its weight."""


def _real_place(axis: ImageAxis, align_corners: bool, dtype: DType) -> Value:
    position = Op("to", [IndexValue(axis.place)], dtype)
    step = axis.step_value(align_corners, dtype)
    if align_corners:
        return Op("mul", [position, step])
    half = constant(0.5, dtype)
    # Rounded once, as compilers do to ATen's formula.
    return Op("fma", [step, Op("add", [position, half]), constant(-0.5, dtype)])


def _fraction(real: Value, whole: Value) -> Value:
    distance = Op("sub", [real, Op("to", [whole], real.dtype)])
    above = Op("maximum", [distance, constant(0, real.dtype)])
    return Op("minimum", [above, constant(1, real.dtype)])


def linear_taps(axis: ImageAxis, align_corners: bool, dtype: DType) -> Taps:
    one = constant(1, dtype)
    if axis.before == axis.after:
        return [(axis.place, one), (axis.place, constant(0, dtype))]
    real = _real_place(axis, align_corners, dtype)
    real = Op("maximum", [real, constant(0, dtype)])
    last = narrow(as_value(axis.before - 1))
    whole = Op("minimum", [narrow(real), last])
    following = Op("minimum", [Op("add", [whole, narrow(1)]), last])
    share = _fraction(real, whole)
    return [
        (cast(whole, DType.i64), Op("sub", [one, share])),
        (cast(following, DType.i64), share),
    ]


def cubic_taps(axis: ImageAxis, align_corners: bool, dtype: DType) -> Taps:
    last = narrow(as_value(axis.before - 1))
    if axis.before == axis.after:
        whole = narrow(as_value(axis.place))
        share: Value = constant(0, dtype)
    else:
        real = _real_place(axis, align_corners, dtype)
        whole = Op("minimum", [narrow(Op("floor", [real])), last])
        share = _fraction(real, whole)
    taps = []
    for distance, weight in zip((-1, 0, 1, 2), cubic_weights(share), strict=True):
        moved = Op("add", [whole, narrow(distance)]) if distance else whole
        within = Op("minimum", [Op("maximum", [moved, narrow(0)]), last])
        taps.append((cast(within, DType.i64), weight))
    return taps


def _weighted(
    ctx: LoweringContext,
    x: TensorExpr,
    align_corners: bool,
    scales: Sequence[float | None],
    taps_of: Callable[[ImageAxis, bool, DType], Taps],
) -> Lowered:
    if not x.dtype.is_float:
        return None  # bytes are added up in fixed point
    if not ctx.result.numel():
        return nothing(ctx)
    dtype = accumulation_dtype(x.dtype)
    dims, axes = image_axes(ctx, x, scales)
    around: list[Place] = [dim.expr for dim in dims[: len(dims) - len(axes)]]
    source = readable(ctx, x)
    taps = [taps_of(axis, align_corners, dtype) for axis in axes]

    def summed(places: list[Place]) -> Value:
        depth = len(places) - len(around)
        if depth == len(taps):
            return cast(gathered(source, places), dtype)
        total: Value | None = None
        for place, weight in taps[depth]:
            part = Op("mul", [summed([*places, place]), weight])
            total = part if total is None else Op("add", [total, part])
        assert total is not None, "each axis has some taps"
        return total

    return ctx.pointwise(dims, summed(around))


@lowers("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def linear(
    ctx: LoweringContext, x: TensorExpr, size: Any, align_corners: bool, *scales: float | None
) -> Lowered:
    return _weighted(ctx, x, align_corners, scales, linear_taps)


@lowers("upsample_bicubic2d")
def cubic(
    ctx: LoweringContext, x: TensorExpr, size: Any, align_corners: bool, *scales: float | None
) -> Lowered:
    return _weighted(ctx, x, align_corners, scales, cubic_taps)
