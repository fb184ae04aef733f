"""Images of another size, each element the nearest one's.

ATen finds it in floating point: in f32, in the image's own precision or with products that are not
rounded, as its kernels for layouts, sizes and numbers of threads do. Where these do not name the
same elements, the call is ATen's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.values import IndexValue, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.gathering import Place, as_value, gathered, narrow, nothing, readable
from plait_ir_lowering.rules.image_axes import ImageAxis, image_axes
from plait_ir_lowering.tensors import TensorExpr

_MOST_OPEN = 1 << 14
"""Up to which size of an open axis kernels are compared."""


@lowers("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def nearest(ctx: LoweringContext, x: TensorExpr, size: Any, *scales: float | None) -> Lowered:
    return _nearest(ctx, x, scales, 0.0)


@lowers("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def nearest_exact(ctx: LoweringContext, x: TensorExpr, size: Any, *scales: float | None) -> Lowered:
    return _nearest(ctx, x, scales, 0.5)


def _nearest(
    ctx: LoweringContext, x: TensorExpr, scales: Sequence[float | None], centre: float
) -> Lowered:
    """`centre` is the part of a step from a place to its element's middle."""
    if not ctx.result.numel():
        return nothing(ctx)
    dims, axes = image_axes(ctx, x, scales)
    places: list[Place] = [dim.expr for dim in dims[: len(dims) - len(axes)]]
    for axis, size in zip(axes, ctx.result.shape[len(places) :], strict=True):
        place = _place_of_open(axis, size, centre) if axis.is_open else _place(axis, centre)
        if place is None:
            return None
        places.append(place)
    return ctx.pointwise(dims, gathered(readable(ctx, x), places))


def _place(axis: ImageAxis, centre: float) -> Place | None:
    """Where the nearest element is; None where kernels differ."""
    before, after = axis.before.as_int(), axis.after.as_int()
    counted = torch.arange(after)
    first = sources(axis, counted, centre)[0].clamp_max(before - 1)
    if not kernels_agree(axis, centre):
        return None
    if torch.equal(first, counted * before // after):
        return axis.place * before // after  # no floats, and often no division
    return computed_place(axis, centre)


def _place_of_open(axis: ImageAxis, size: int | torch.SymInt, centre: float) -> Place | None:
    """The same where sizes are open: kernels agree up to a size, which is noted."""
    if axis.scale is None or not axis.scale > 0:
        return None
    counted = torch.arange(_MOST_OPEN)
    first, *others = sources(axis, counted, centre)
    if not all(torch.equal(first, other) for other in others) or not size <= _MOST_OPEN:
        return None
    times = max(1, int(axis.scale))
    if axis.after is axis.before * times and torch.equal(first, counted // times):
        return axis.place // times
    return computed_place(axis, centre)


def kernels_agree(axis: ImageAxis, centre: float) -> bool:
    """Whether all kernels name the same elements of an axis."""
    counted, last = torch.arange(axis.after.as_int()), axis.before.as_int() - 1
    first, *others = (each.clamp_max(last) for each in sources(axis, counted, centre))
    return all(torch.equal(first, other) for other in others)


def computed_place(axis: ImageAxis, centre: float) -> Value:
    """Where the nearest element is, as kernels that agree compute it."""
    position = Op("to", [IndexValue(axis.place)], DType.f32)
    if centre:
        position = Op("add", [position, constant(centre, DType.f32)])
    scaled = Op("mul", [position, constant(axis.step(), DType.f32)])
    floor = narrow(Op("floor", [scaled]))
    return cast(Op("minimum", [floor, narrow(as_value(axis.before - 1))]), DType.i64)


def sources(axis: ImageAxis, counted: Tensor, centre: float) -> list[Tensor]:
    """The element of each place in f32, in f64 and with the products of f32 not rounded.

    They may lie behind the last one.
    """
    step = torch.tensor(axis.step(), dtype=torch.float64)
    middle = counted + torch.tensor(centre, dtype=torch.float64)
    exact = middle * step.float().double()
    found = [middle.float() * step.float(), middle * step, (middle * step).float(), exact]
    found.append(((exact - centre).float() + centre).double())
    return [each.floor().long() for each in found]
