"""Images of another size whose elements are weighted means of all that they cover.

First along the columns, whose sums are of whole rows, then along the rows of what is left; along
an axis that keeps its size, nothing is done. Where
an element covers many, ATen's kernel is faster: it jumps between them without gathering.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from plait_ir_lowering.context import LoweringContext, cast
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Reduction
from plait_ir_lowering.ir.index import IndexExpr, Var
from plait_ir_lowering.ir.ops import ReductionKind
from plait_ir_lowering.ir.values import IndexValue, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.formulas import add, div, is_below, is_equal, mul, number, sub, where
from plait_ir_lowering.rules.gathering import Place, as_value, gathered, narrow, nothing, readable
from plait_ir_lowering.rules.image_axes import ImageAxis, image_axes
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_utils import dataclass

Filter = Callable[[Value], Value]
"""The weight of an element so far from the centre, in steps of the coarser image."""

_SHARPNESS = -0.5
"""Of the cubic filter."""
_FINE = 1024
"""Steps of whole such parts are exact, and places that are computed of them."""
_SLACK = 1e-3
"""How far places may be from those that ATen computes."""
_MOST_TAPS = 5
"""As a linear filter has for an image of half the size, and a cubic one for a larger image."""


def _linear(distance: Value) -> Value:
    return Op("maximum", [sub(number(distance, 1), distance), number(distance, 0)])


def _cubic(distance: Value) -> Value:
    square = mul(distance, distance)
    near = sub(mul(number(distance, _SHARPNESS + 2), distance), number(distance, _SHARPNESS + 3))
    near = add(mul(near, square), number(distance, 1))
    far = mul(sub(distance, number(distance, 5)), distance)
    far = sub(mul(add(far, number(distance, 8)), distance), number(distance, 4))
    far = mul(far, number(distance, _SHARPNESS))
    outside = where(is_below(distance, 2), far, number(distance, 0))
    return where(is_below(distance, 1), near, outside)


@dataclass(frozen=True, slots=True)
class Covered:
    """What the elements of one axis cover, and the filter that weighs it."""

    axis: ImageAxis
    step: float
    reach: float
    """How far from its centre an element covers, in elements of the image."""
    filtered: Filter
    dtype: DType

    @property
    def most(self) -> int:
        return min(2 * math.ceil(self.reach) + 1, self.axis.before.as_int())

    def is_certain(self) -> bool:
        """Whether it does not hang on roundings which elements are covered: one of no weight
        counts where it is not finite."""
        if (self.step * _FINE).is_integer():
            return True  # all is exact
        centres = self.step * (torch.arange(self.axis.after.as_int(), dtype=torch.float64) + 0.5)
        ends = torch.cat([centres - self.reach, centres + self.reach]) + 0.5
        return bool(((ends - ends.round()).abs() > _SLACK).all())

    def centre(self, place: IndexExpr) -> Value:
        value = cast(IndexValue(place), self.dtype)
        return mul(add(value, number(value, 0.5)), number(value, self.step))

    def first(self, place: IndexExpr) -> Value:
        """The first element that the one at `place` covers, as an i32 value."""
        centre = self.centre(place)
        first = add(sub(centre, number(centre, self.reach)), number(centre, 0.5))
        return Op("maximum", [narrow(first), narrow(0)])

    def count(self, place: IndexExpr) -> Value:
        centre = self.centre(place)
        behind = narrow(add(add(centre, number(centre, self.reach)), number(centre, 0.5)))
        last = Op("minimum", [behind, narrow(as_value(self.axis.before))])
        return sub(last, self.first(place))

    def weight(self, place: IndexExpr, tap: IndexExpr) -> Value:
        centre = self.centre(place)
        at = cast(add(self.first(place), narrow(as_value(tap))), self.dtype)
        distance = add(sub(at, centre), number(centre, 0.5))
        scaled = mul(distance, number(centre, 1 / self.step if self.step >= 1 else 1))
        found = self.filtered(Op("abs", [scaled]))
        is_covered = Op("lt", [narrow(as_value(tap)), self.count(place)])
        return where(is_covered, found, number(found, 0))


def _covered(
    axis: ImageAxis, align_corners: bool, filtered: Filter, width: float, dtype: DType
) -> Covered:
    step = axis.step(align_corners)
    return Covered(axis, step, width * max(step, 1.0), filtered, dtype)


def _means(
    ctx: LoweringContext, x: TensorExpr, at: int, dims: Sequence[Var], covered: Covered
) -> tuple[Var, Value]:
    """The taps along dimension `at` of `x`, and the part of each in the result at `dims`."""
    alone, tap = Var("i1", dims[at].extent), Var("i0", covered.most)
    over = Var("r0", covered.most)
    weights = ctx.intermediate((tap, alone), covered.weight(alone.expr, tap.expr), "weights")
    line = Var("i0", alone.extent)
    firsts = ctx.intermediate((line,), covered.first(line.expr), "firsts")
    counts = ctx.intermediate((line,), covered.count(line.expr), "counts")
    weight = weights.at([over.expr, line.expr])
    total = ctx.combined((line,), (over,), ReductionKind.SUM, weight, "total")
    whole = total.at([alone.expr])
    divisor = where(is_equal(whole, 0), number(whole, 1), whole)
    share = div(weights.at([tap.expr, alone.expr]), divisor)
    shares = ctx.intermediate((tap, alone), share, "shares")
    place = dims[at].expr
    element = add(firsts.at([place]), narrow(as_value(over.expr)))
    inside = Op("minimum", [element, narrow(as_value(covered.axis.before - 1))])
    places: list[Place] = [dim.expr for dim in dims]
    places[at] = cast(inside, DType.i64)
    part = mul(gathered(readable(ctx, x), places), shares.at([over.expr, place]))
    is_covered = Op("lt", [narrow(as_value(over.expr)), counts.at([place])])
    return over, where(is_covered, part, number(part, 0))


def _resized(
    ctx: LoweringContext,
    x: TensorExpr,
    align_corners: bool,
    scales: Sequence[float | None],
    filtered: Filter,
    width: float,
) -> Lowered:
    if x.dtype not in (DType.f32, DType.f64):
        return None  # bytes are added up in fixed point
    if not ctx.result.numel():
        return nothing(ctx)
    dims, axes = image_axes(ctx, x, scales)
    if any(1 in (axis.before.as_int(), axis.after.as_int()) for axis in axes):
        return None  # which of its dimensions such an image's strides tell is ATen's affair
    rows, columns = (_covered(axis, align_corners, filtered, width, x.dtype) for axis in axes)
    changed = [each for each in (rows, columns) if each.axis.before is not each.axis.after]
    if not changed or not all(each.is_certain() and each.most <= _MOST_TAPS for each in changed):
        return None
    body = None
    for place, covered in ((len(dims) - 2, rows), (len(dims) - 1, columns)):
        if covered in changed:
            made = (*dims[: place + 1], *dimensions(x.shape)[place + 1 :])
            if body is not None:
                x = ctx.combined(*body, "rows")
            tap, part = _means(ctx, x, place, made, covered)
            body = made, (tap,), ReductionKind.SUM, part
    assert body is not None, "some axis has another size"
    return ctx.define(Reduction(*body), ctx.result)


@lowers("_upsample_bilinear2d_aa")
def linear(
    ctx: LoweringContext,
    x: TensorExpr,
    size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> Lowered:
    return _resized(ctx, x, align_corners, scales, _linear, 1.0)


@lowers("_upsample_bicubic2d_aa")
def cubic(
    ctx: LoweringContext,
    x: TensorExpr,
    size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> Lowered:
    return _resized(ctx, x, align_corners, scales, _cubic, 2.0)
