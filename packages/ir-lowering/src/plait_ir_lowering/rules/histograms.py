"""Histograms of a range that is given, on GPUs: a count for each bin, and the bin of each element.

Counts are integers, so they are exact in whichever order they are made. Bins are those of ATen's
kernels for GPUs, with each operation rounded as there:

    bin(v) = trunc((v - min) * bins / (max - min)), the last one for v = max

Of a range that is to be found in the data, ATen tells where it is not finite, for which it waits;
it is called then, on CPUs, whose kernel rounds otherwise, and for what it refuses.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.ops import ScatterKind
from plait_ir_lowering.ir.values import Const, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.scattering import filled, scatter_constant
from plait_ir_lowering.rules.writes import Writes
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_ir_lowering.torch_types import to_torch_dtype

_FLOATS = (DType.f32, DType.f64)
_INTEGERS = (DType.u8, DType.i8, DType.i16, DType.i32, DType.i64)
_MOST_COUNTED = (1 << 31) - 1
"""Elements that 32 bits count."""


@lowers("histc")
def histc(ctx: LoweringContext, x: TensorExpr, bins: Any, least: Any, largest: Any) -> Lowered:
    """How many elements each bin has, in the elements' type; NaN and what is out of range is in
    none."""
    on_gpu = ctx.result.device.type == "cuda"
    if not on_gpu or type(bins) is not int or not 0 < bins <= _MOST_COUNTED:
        return None
    if x.dtype not in (*_FLOATS, *_INTEGERS) or (x.dtype.is_float and ctx.options.deterministic):
        return None
    ends = _ends(x.dtype, bins, least, largest)
    if ends is None:
        return None
    ranges = dimensions(x.shape, "w")
    bin_of, is_inside = _bin(x.at([var.expr for var in ranges]), bins, *ends)
    known = all(var.extent.is_constant for var in ranges)
    numel = math.prod(var.extent.as_int() for var in ranges) if known else _MOST_COUNTED + 1
    dtype = DType.i32 if numel <= _MOST_COUNTED else DType.i64
    like = ctx.result.new_empty((bins,), dtype=to_torch_dtype(dtype))
    writes = Writes(ranges, [bin_of], is_inside)
    counts = scatter_constant(
        ctx, filled(ctx, 0, like), writes, ScatterKind.ADD, Const(1, dtype), like
    )
    return ctx.pointwise(counts.dims, counts.value)


def _ends(dtype: DType, bins: int, least: Any, largest: Any) -> tuple[float, float, float] | None:
    """The ends of the range, and how far they are apart, as ATen computes with them: in the
    elements' type, of integers in 64 bits.

    None where that is no range, or passes the type's own, as products in it may.
    """
    if not all(type(end) in (bool, int, float) and math.isfinite(end) for end in (least, largest)):
        return None
    if not dtype.is_float:
        low, high = int(least), int(largest)
        wide = max(abs(low), abs(high), (high - low) * bins) >= 1 << 62
        return None if wide or low >= high else (low, high, high - low)
    ends = torch.tensor([least, largest], dtype=torch.float64).to(to_torch_dtype(dtype))
    apart = ends[1] - ends[0]
    if not apart > 0 or not math.isfinite((apart * bins).item()):
        return None
    return ends[0].item(), ends[1].item(), apart.item()


def _bin(
    value: Value, bins: int, least: float, largest: float, apart: float
) -> tuple[Value, Value]:
    """The bin of an element, within bounds, and whether it is in the range."""
    dtype = value.dtype if value.dtype.is_float else DType.i64
    value = cast(value, dtype)
    low, high = constant(least, dtype), constant(largest, dtype)
    is_inside = Op("logical_and", [Op("ge", [value, low]), Op("le", [value, high])])
    above = Op("sub", [Op("where", [is_inside, value, low]), low])
    scaled = Op("mul", [above, constant(bins, dtype)])
    divide = "div" if dtype.is_float else "truncdiv"
    place = Op(divide, [scaled, constant(apart, dtype)])
    index = cast(place, DType.i64)
    return Op("minimum", [index, constant(bins - 1, DType.i64)]), is_inside
