"""Histograms on GPUs: a count for each bin, and the bin of each element.

Counts are integers, so they are exact in whichever order they are made. Bins are those of ATen's
kernels for GPUs, with each operation rounded as there:

    bin(v) = trunc((v - min) * bins / (max - min)), the last one for v = max

A range that is not given is that of the data, one more on each side where that is one number. ATen
refuses one that is not finite, which no kernel can tell: it is called for floats, then.

It is called for many bins, too, which it counts in the memory that programs of a block share: 64
million floats into 256 bins take 284 µs here and 306 there, into 1024 bins 981 and 284 (H200,
Triton 3.6); and on CPUs, whose kernel rounds otherwise.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.ops import ReductionKind, ScatterKind
from plait_ir_lowering.ir.values import Const, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.scattering import filled, scatter_constant
from plait_ir_lowering.rules.writes import Writes
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_ir_lowering.torch_types import to_torch_dtype
from plait_utils import dataclass

_FLOATS = (DType.f32, DType.f64)
_NARROW = (DType.u8, DType.i8, DType.i16, DType.i32)
_INTEGERS = (*_NARROW, DType.i64)
_MOST_BINS = 256
_MOST_COUNTED = (1 << 31) - 1
"""Elements that 32 bits count."""


@lowers("histc")
def histc(ctx: LoweringContext, x: TensorExpr, bins: Any, least: Any, largest: Any) -> Lowered:
    """How many elements each bin has, in the elements' type; NaN and what is out of range is in
    none."""
    on_gpu = ctx.result.device.type == "cuda"
    if not on_gpu or type(bins) is not int or not 0 < bins <= _MOST_BINS:
        return None
    if x.dtype not in (*_FLOATS, *_INTEGERS) or (x.dtype.is_float and ctx.options.deterministic):
        return None
    ends = _ends(ctx, x, bins, least, largest)
    if ends is None:
        return None
    ranges = dimensions(x.shape, "w")
    bin_of, is_inside = _bin(x.at([var.expr for var in ranges]), bins, ends)
    known = all(var.extent.is_constant for var in ranges)
    numel = math.prod(var.extent.as_int() for var in ranges) if known else _MOST_COUNTED + 1
    dtype = DType.i32 if numel <= _MOST_COUNTED else DType.i64
    like = ctx.result.new_empty((bins,), dtype=to_torch_dtype(dtype))
    writes = Writes(ranges, [bin_of], is_inside)
    counts = scatter_constant(
        ctx, filled(ctx, 0, like), writes, ScatterKind.ADD, Const(1, dtype), like
    )
    return ctx.pointwise(counts.dims, counts.value)


@dataclass(frozen=True, slots=True)
class _Ends:
    """The ends of a range and how far they are apart, as ATen computes with them: in the elements'
    type, of integers in 64 bits."""

    low: Value
    high: Value
    apart: Value


def _ends(ctx: LoweringContext, x: TensorExpr, bins: int, least: Any, largest: Any) -> _Ends | None:
    """None where these are no range, or pass the type's own, as products in it may."""
    if not all(type(end) in (bool, int, float) and math.isfinite(end) for end in (least, largest)):
        return None
    dtype = x.dtype if x.dtype.is_float else DType.i64
    low: float
    high: float
    if x.dtype.is_float:
        of = torch.tensor([least, largest], dtype=torch.float64).to(to_torch_dtype(dtype))
        low, high = of[0].item(), of[1].item()
        apart = (of[1] - of[0]).item()
        is_narrow = math.isfinite((of[1] - of[0]).mul(bins).item())
    else:
        low, high = int(least), int(largest)
        apart = high - low
        is_narrow = max(abs(low), abs(high), apart * bins) < 1 << 62
    if low == high:
        return _ends_of_data(ctx, x, dtype)
    if low > high or not is_narrow:
        return None
    return _Ends(constant(low, dtype), constant(high, dtype), constant(apart, dtype))


def _ends_of_data(ctx: LoweringContext, x: TensorExpr, dtype: DType) -> _Ends | None:
    """The least and the largest element, of integers that have one more on each side; None where it
    is not known whether there is one."""
    known = all(extent.is_constant and extent.as_int() for extent in x.shape)
    if x.dtype not in _NARROW or not known:
        return None
    one, axes = constant(1, dtype), range(len(x.dims))
    found = TensorExpr(x.dims, cast(x.value, dtype))
    low = high = found.value
    if x.dims:
        kinds = (ReductionKind.MIN, "least"), (ReductionKind.MAX, "largest")
        low, high = (
            ctx.reduce(found, axes, kind, keepdim=False, name=name).at([]) for kind, name in kinds
        )
    is_one = Op("eq", [low, high])
    low = Op("where", [is_one, Op("sub", [low, one]), low])
    high = Op("where", [is_one, Op("add", [high, one]), high])
    start = ctx.intermediate((), low, "low").at([])
    end = ctx.intermediate((), high, "high").at([])
    return _Ends(start, end, Op("sub", [end, start]))


def _bin(value: Value, bins: int, ends: _Ends) -> tuple[Value, Value]:
    """The bin of an element, within bounds, and whether it is in the range."""
    dtype = ends.low.dtype
    value = cast(value, dtype)
    is_inside = Op("logical_and", [Op("ge", [value, ends.low]), Op("le", [value, ends.high])])
    above = Op("sub", [Op("where", [is_inside, value, ends.low]), ends.low])
    scaled = Op("mul", [above, constant(bins, dtype)])
    place = Op("div" if dtype.is_float else "truncdiv", [scaled, ends.apart])
    index = cast(place, DType.i32)  # in which ATen counts bins
    index = Op("minimum", [Op("maximum", [index, Const(0, DType.i32)]), Const(bins - 1, DType.i32)])
    return cast(index, DType.i64), is_inside
