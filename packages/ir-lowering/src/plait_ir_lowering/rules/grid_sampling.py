"""Images sampled at places that a tensor gives, as fractions of their sizes.

ATen's kernel of two axes clips NaN to 0, that of three to the last element; and where an element
is outside, the former adds zero times its weight, which may be NaN, the latter nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import as_index
from plait_ir_lowering.ir.values import Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.gathering import Place, gathered, narrow, nothing, readable
from plait_ir_lowering.rules.interpolation import cubic_weights
from plait_ir_lowering.rules.reductions import accumulation_dtype
from plait_ir_lowering.rules.windows import result_dims
from plait_ir_lowering.tensors import TensorExpr
from plait_utils import dataclass

_NEAREST, _CUBIC = 1, 2
"""ATen's numbers of the ways to interpolate; 0 is linear."""
_ZEROS, _BORDER = 0, 1
"""... and of what is outside; 2 is the image, reflected."""


@dataclass(frozen=True, slots=True)
class _Sampler:
    """One call's options, and where its image and its result are."""

    image: TensorExpr
    around: tuple[Place, ...]
    dtype: DType
    padding: int
    align_corners: bool
    rank: int

    def number(self, value: float) -> Value:
        return constant(value, self.dtype)

    def size(self, axis: int) -> int:
        return self.image.shape[2 + axis].as_int()

    def placed(self, axis: int, given: Value) -> Value:
        """From [-1, 1], over centres or edges of the image, to elements."""
        shifted = Op("add", [given, self.number(1)])
        if self.align_corners:
            return Op("mul", [shifted, self.number((self.size(axis) - 1) / 2)])
        scaled = Op("mul", [shifted, self.number(self.size(axis) / 2)])
        return Op("sub", [scaled, self.number(0.5)])

    def within(self, axis: int, place: Value) -> Value:
        """The place in the image that stands for one outside."""
        if self.padding == _ZEROS:
            return place
        if self.padding != _BORDER:
            place = self.reflected(axis, place)
        first, last = self.number(0), self.number(self.size(axis) - 1)
        above = Op("where", [Op("lt", [place, first]), first, place])
        inside = Op("where", [Op("gt", [above, last]), last, above])
        instead = first if self.rank == 2 else last
        return Op("where", [Op("isnan", [place]), instead, inside])

    def reflected(self, axis: int, place: Value) -> Value:
        """Around the first and last element, or the edges behind them, as often as needed."""
        size = self.size(axis)
        low, span = (0.0, size - 1) if self.align_corners else (-0.5, size)
        if span == 0:
            return self.number(0)
        distance = Op("abs", [Op("sub", [place, self.number(low)])])
        if self.rank == 3:
            once = self.number(span)
            extra = Op("fmod", [distance, once])
            turns = Op("fmod", [Op("floor", [Op("div", [distance, once])]), self.number(2)])
            is_back = Op("ne", [turns, self.number(0)])
            bent = Op("where", [is_back, Op("sub", [once, extra]), extra])
            return Op("add", [bent, self.number(low)])
        double = self.number(2 * span)
        turns = Op("trunc", [Op("div", [distance, double])])
        extra = Op("sub", [distance, Op("mul", [turns, double])])
        back = Op("sub", [double, extra])
        return Op("add", [Op("minimum", [extra, back]), self.number(low)])

    def element(self, places: Sequence[Value]) -> tuple[Value, Value]:
        """The element at whole places, or zero, and whether there is one.

        Each lane reads some element, whose place is clipped: that is cheaper than not to read.
        """
        mask: Value | None = None
        coordinates: list[Place] = []
        for axis, place in enumerate(places):
            size = self.number(self.size(axis))
            low = Op("ge", [place, self.number(0)])
            inside = Op("logical_and", [low, Op("lt", [place, size])])
            mask = inside if mask is None else Op("logical_and", [mask, inside])
            whole = narrow(Op("where", [inside, place, self.number(0)]))
            clipped = Op("minimum", [whole, narrow(self.size(axis) - 1)])
            coordinates.append(cast(clipped, DType.i64))
        assert mask is not None, "an image has axes"
        load = cast(gathered(self.image, [*self.around, *coordinates]), self.dtype)
        return Op("where", [mask, load, self.number(0)]), mask

    def weighted(self, places: Sequence[Value], weight: Value) -> Value:
        """An element's part of a sum."""
        element, inside = self.element(places)
        part = Op("mul", [element, weight])
        return part if self.rank == 2 else Op("where", [inside, part, self.number(0)])

    def linear(self, places: Sequence[Value]) -> Value:
        floors = [Op("floor", [place]) for place in places]
        ends: list[tuple[tuple[Value, Value], tuple[Value, Value]]] = []
        for place, floor in zip(places, floors, strict=True):
            share = Op("sub", [place, floor])
            following = Op("add", [floor, self.number(1)])
            ends.append(((floor, Op("sub", [self.number(1), share])), (following, share)))
        total: Value | None = None
        for corner in product(*ends):
            weight = corner[-1][1]
            for _, other in reversed(corner[:-1]):
                weight = Op("mul", [weight, other])
            part = self.weighted([place for place, _ in corner], weight)
            total = part if total is None else Op("add", [total, part])
        assert total is not None, "an image has corners"
        return total

    def cubic(self, places: Sequence[Value]) -> Value:
        """Along the last axis first; each place is brought into the image by itself."""
        taps: list[list[tuple[Value, Value]]] = []
        for axis, place in enumerate(places):
            floor = Op("floor", [place])
            weights = cubic_weights(Op("sub", [place, floor]))
            near = [Op("add", [floor, self.number(step)]) for step in (-1, 0, 1, 2)]
            moved = [self.within(axis, each) for each in near]
            taps.append(list(zip(moved, weights, strict=True)))
        total: Value | None = None
        for row, row_weight in taps[0]:
            along: Value | None = None
            for column, weight in taps[1]:
                part = Op("mul", [self.element([row, column])[0], weight])
                along = part if along is None else Op("add", [along, part])
            assert along is not None, "there are four"
            line = Op("mul", [along, row_weight])
            total = line if total is None else Op("add", [total, line])
        assert total is not None, "there are four"
        return total


@lowers("grid_sampler_2d", "grid_sampler_3d")
def grid_sample(
    ctx: LoweringContext,
    x: TensorExpr,
    grid: TensorExpr,
    mode: int,
    padding: int,
    align_corners: bool,
) -> Lowered:
    if not x.dtype.is_float or grid.dtype is not x.dtype:
        return None
    if not ctx.result.numel():
        return nothing(ctx)
    if any(extent.as_int() == 0 for extent in x.shape[2:]):
        return None
    dims = result_dims(ctx)
    rank = len(dims) - 2
    dtype = accumulation_dtype(x.dtype)
    image = readable(ctx, x)
    around = (dims[0].expr, dims[1].expr)
    sampler = _Sampler(image, around, dtype, padding, align_corners, rank)
    at = [dims[0].expr, *(dim.expr for dim in dims[2:])]
    places = []
    for axis in range(rank):  # the grid names the last axis first
        given = cast(grid.at([*at, as_index(rank - 1 - axis)]), dtype)
        places.append(sampler.placed(axis, given))
    if mode == _CUBIC:
        return ctx.pointwise(dims, sampler.cubic(places))
    inside = [sampler.within(axis, place) for axis, place in enumerate(places)]
    if mode == _NEAREST:
        rounded = [Op("round", [place]) for place in inside]
        return ctx.pointwise(dims, sampler.element(rounded)[0])
    return ctx.pointwise(dims, sampler.linear(inside))
