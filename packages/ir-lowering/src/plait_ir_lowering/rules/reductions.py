"""Reductions: sums, means, extrema, positions, variances, norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import IndexExpr, OpenSizeError, as_index, bounds
from plait_ir_lowering.ir.index_queries import product
from plait_ir_lowering.ir.ops import PARTS, ReductionKind
from plait_ir_lowering.ir.values import IndexValue, Op, Value, part
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.complex_formulas import op
from plait_ir_lowering.rules.complex_numbers import magnitude as complex_magnitude
from plait_ir_lowering.rules.complex_numbers import pair, parts
from plait_ir_lowering.rules.formulas import add, div
from plait_ir_lowering.rules.pointwise import truth
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_ir_lowering.torch_types import from_torch_dtype


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Non-negative reduction axes; all of them for None or an empty list."""
    if axes is None or (isinstance(axes, list | tuple) and not axes):
        return tuple(range(rank))
    given = [axes] if isinstance(axes, int) else list(axes)
    return tuple(sorted({axis + rank if axis < 0 else axis for axis in given})) if rank else ()


def accumulation_dtype(dtype: DType) -> DType:
    """What a float reduction adds in: f32 for narrower floats."""
    return DType.f32 if dtype.is_reduced_precision else dtype


def products_dtype(dtype: DType) -> DType:
    """What products are added in; integers in i64, whose low bits are those of narrower sums."""
    return DType.i64 if dtype.is_integer else accumulation_dtype(dtype)


def count(x: TensorExpr, axes: Sequence[int]) -> int | IndexExpr:
    """How many elements each result combines; where that is not a number, it is above 0.

    Raises OpenSizeError where it may be 0.
    """
    total = product(x.shape[axis] for axis in axes)
    if total.is_constant:
        return total.constant
    least = bounds(total)[0]
    if least is None or least < 1:
        raise OpenSizeError(f"{total}, which may be 0")
    return total


def cast_elements(x: TensorExpr, dtype: DType) -> TensorExpr:
    """`x` with each element as `dtype`; an expression, not a buffer."""
    return TensorExpr(x.dims, cast(x.value, dtype), x.ref if x.dtype is dtype else None)


def finish(ctx: LoweringContext, x: TensorExpr, compute: Any = None) -> TensorExpr:
    """The node's result from a reduced buffer of the same shape."""
    places = [dim.expr for dim in dimensions(x.shape)]
    value = x.at(places)
    return ctx.pointwise(dimensions(x.shape), compute(value) if compute else value)


@lowers("sum.dim_IntList")
def sum_dims(
    ctx: LoweringContext, x: TensorExpr, axes: Any, keepdim: bool, dtype: torch.dtype | None
) -> Lowered:
    result = ctx.dtype_of(ctx.result)
    wide = accumulation_dtype(result)
    along = axes_of(axes, len(x.dims))
    if wide in PARTS:
        return finish(ctx, complex_sum(ctx, cast_elements(x, wide), along, keepdim))
    total = ctx.reduce(x, along, ReductionKind.SUM, keepdim=keepdim, name="sum", dtype=wide)
    return total if wide is result else finish(ctx, total)


def complex_sum(
    ctx: LoweringContext, x: TensorExpr, along: Sequence[int], keepdim: bool
) -> TensorExpr:
    """The sums of the parts, as complex numbers: an expression, not a buffer."""
    real, imaginary = (
        ctx.reduce(
            TensorExpr(x.dims, part(name, x.value)),
            along,
            ReductionKind.SUM,
            keepdim=keepdim,
            name=name,
        )
        for name in ("real", "imag")
    )
    return TensorExpr(real.dims, Op("complex", [real.value, imaginary.value]))


@lowers("sum")
def sum_all(ctx: LoweringContext, x: TensorExpr, dtype: torch.dtype | None) -> Lowered:
    return sum_dims(ctx, x, None, False, dtype)


@lowers("mean.dim")
def mean_dims(
    ctx: LoweringContext, x: TensorExpr, axes: Any, keepdim: bool, dtype: torch.dtype | None
) -> Lowered:
    wide = accumulation_dtype(ctx.dtype_of(ctx.result))
    along = axes_of(axes, len(x.dims))
    if wide in PARTS:
        total = complex_sum(ctx, cast_elements(x, wide), along, keepdim)
        length = constant(count(x, along), PARTS[wide])
        return finish(ctx, total, lambda value: pair(*(div(each, length) for each in parts(value))))
    total = ctx.reduce(x, along, ReductionKind.SUM, keepdim=keepdim, name="sum", dtype=wide)
    number = constant(count(x, along), wide)
    return finish(ctx, total, lambda value: Op("div", [value, number]))


@lowers("mean")
def mean_all(ctx: LoweringContext, x: TensorExpr, dtype: torch.dtype | None) -> Lowered:
    return mean_dims(ctx, x, None, False, dtype)


@lowers("prod.dim_int")
def prod_dim(
    ctx: LoweringContext, x: TensorExpr, axis: int, keepdim: bool, dtype: torch.dtype | None
) -> Lowered:
    result = ctx.dtype_of(ctx.result)
    along = axes_of(axis, len(x.dims))
    if result in PARTS:
        return _complex_product(ctx, cast_elements(x, result), along, keepdim)
    wide = accumulation_dtype(result)
    total = ctx.reduce(x, along, ReductionKind.PROD, keepdim=keepdim, name="prod", dtype=wide)
    return total if wide is result else finish(ctx, total)


@lowers("prod")
def prod_all(ctx: LoweringContext, x: TensorExpr, dtype: torch.dtype | None) -> Lowered:
    result = ctx.dtype_of(ctx.result)
    along = axes_of(None, len(x.dims))
    if result in PARTS:
        return _complex_product(ctx, cast_elements(x, result), along, False)
    wide = accumulation_dtype(result)
    total = ctx.reduce(x, along, ReductionKind.PROD, keepdim=False, name="prod", dtype=wide)
    return total if wide is result else finish(ctx, total)


def _complex_product(
    ctx: LoweringContext, x: TensorExpr, along: Sequence[int], keepdim: bool
) -> Lowered:
    """By halves of each dimension, until one element is left of it."""
    for axis in along:
        if not x.shape[axis].is_constant:
            raise OpenSizeError(f"a product of {x.shape[axis]} complex numbers")
        while (extent := x.shape[axis].as_int()) > 1:
            x = _halved(ctx, x, axis, extent)
        if extent == 0:
            dims = dimensions(ctx.result.shape)
            return ctx.pointwise(dims, constant(1, x.dtype))
    return finish(ctx, _drop(x, along, keepdim))


def _halved(ctx: LoweringContext, x: TensorExpr, axis: int, extent: int) -> TensorExpr:
    """The products of the first half's elements with the second's; what is left joins the first."""
    half = extent // 2
    dims = dimensions([half if n == axis else size for n, size in enumerate(x.shape)])
    here = [dim.expr for dim in dims]

    def at(place: IndexExpr) -> Value:
        return x.at([place if n == axis else each for n, each in enumerate(here)])

    value = op("mul", [at(here[axis]), at(here[axis] + half)])
    if extent % 2:
        is_first = Op("eq", [IndexValue(here[axis]), constant(0, DType.i64)])
        value = Op("where", [is_first, op("mul", [value, at(as_index(extent - 1))]), value])
    return ctx.intermediate(dims, value, "halves")


def _extreme(
    ctx: LoweringContext, x: TensorExpr, axes: Any, keepdim: bool, kind: ReductionKind
) -> Lowered:
    along = axes_of(axes, len(x.dims))
    if count(x, along) == 0:
        return None
    return ctx.reduce(x, along, kind, keepdim=keepdim, name=kind.value)


@lowers("amax")
def amax(ctx: LoweringContext, x: TensorExpr, axes: Any, keepdim: bool) -> Lowered:
    return _extreme(ctx, x, axes, keepdim, ReductionKind.MAX)


@lowers("amin")
def amin(ctx: LoweringContext, x: TensorExpr, axes: Any, keepdim: bool) -> Lowered:
    return _extreme(ctx, x, axes, keepdim, ReductionKind.MIN)


@lowers("max")
def max_all(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return _extreme(ctx, x, None, False, ReductionKind.MAX)


@lowers("min")
def min_all(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return _extreme(ctx, x, None, False, ReductionKind.MIN)


@lowers("argmax")
def argmax(ctx: LoweringContext, x: TensorExpr, axis: int | None, keepdim: bool) -> Lowered:
    return _extreme(ctx, x, axis, keepdim, ReductionKind.ARGMAX)


@lowers("argmin")
def argmin(ctx: LoweringContext, x: TensorExpr, axis: int | None, keepdim: bool) -> Lowered:
    return _extreme(ctx, x, axis, keepdim, ReductionKind.ARGMIN)


@lowers("max.dim")
def max_dim(ctx: LoweringContext, x: TensorExpr, axis: int, keepdim: bool) -> Lowered:
    return _with_position(ctx, x, axis, keepdim, ReductionKind.MAX, ReductionKind.ARGMAX)


@lowers("min.dim")
def min_dim(ctx: LoweringContext, x: TensorExpr, axis: int, keepdim: bool) -> Lowered:
    return _with_position(ctx, x, axis, keepdim, ReductionKind.MIN, ReductionKind.ARGMIN)


def _ordered(x: TensorExpr) -> TensorExpr:
    """`x`, bools as bytes: a backend's register for a bool need not be ordered."""
    return cast_elements(x, DType.i8) if x.dtype is DType.bool_ else x


def _with_position(
    ctx: LoweringContext,
    x: TensorExpr,
    axis: int,
    keepdim: bool,
    extreme: ReductionKind,
    position: ReductionKind,
) -> Lowered:
    along = axes_of(axis, len(x.dims))
    if count(x, along) == 0:
        return None
    return (
        ctx.reduce(x, along, extreme, keepdim=keepdim, name=extreme.value),
        ctx.reduce(_ordered(x), along, position, keepdim=keepdim, name=position.value),
    )


def _truths(
    ctx: LoweringContext, x: TensorExpr, axes: Any, keepdim: bool, kind: ReductionKind
) -> Lowered:
    if ctx.result.dtype is not torch.bool:
        return None
    flags = TensorExpr(x.dims, truth(x.value))
    along = axes_of(axes, len(x.dims))
    return ctx.reduce(flags, along, kind, keepdim=keepdim, name=kind.value)


@lowers("any.dim", "any.dims")
def any_dims(ctx: LoweringContext, x: TensorExpr, axes: Any, keepdim: bool) -> Lowered:
    return _truths(ctx, x, axes, keepdim, ReductionKind.ANY)


@lowers("any")
def any_all(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return _truths(ctx, x, None, False, ReductionKind.ANY)


@lowers("all.dim", "all.dims")
def all_dims(ctx: LoweringContext, x: TensorExpr, axes: Any, keepdim: bool) -> Lowered:
    return _truths(ctx, x, axes, keepdim, ReductionKind.ALL)


@lowers("all")
def all_all(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return _truths(ctx, x, None, False, ReductionKind.ALL)


def mean_and_deviation(
    ctx: LoweringContext, x: TensorExpr, axes: Sequence[int]
) -> tuple[TensorExpr, TensorExpr]:
    """The mean and the sum of squared deviations over `axes`, dimensions kept.

    Two passes over the data: as accurate as Welford's method, and each pass vectorises.
    """
    wide = accumulation_dtype(x.dtype)
    number = constant(count(x, axes), wide)
    total = ctx.reduce(x, axes, ReductionKind.SUM, keepdim=True, name="sum", dtype=wide)
    dims = dimensions(total.shape)
    average = Op("div", [total.at([d.expr for d in dims]), number])
    mean = ctx.intermediate(dims, average, "mean")
    element = cast(x.value, wide)
    centred = Op("sub", [element, mean.broadcast_at([d.expr for d in x.dims])])
    squared = TensorExpr(x.dims, Op("mul", [centred, centred]))
    deviation = ctx.reduce(squared, axes, ReductionKind.SUM, keepdim=True, name="squares")
    return mean, deviation


def _of_both_parts(
    ctx: LoweringContext, x: TensorExpr, axes: Sequence[int]
) -> tuple[TensorExpr, TensorExpr]:
    """The mean of complex numbers, and the sum of the squares of their distances from it."""
    (mean, squares), (mean_imaginary, squares_imaginary) = (
        mean_and_deviation(ctx, TensorExpr(x.dims, each), axes) for each in parts(x.value)
    )
    return (
        TensorExpr(mean.dims, pair(mean.value, mean_imaginary.value)),
        TensorExpr(squares.dims, add(squares.value, squares_imaginary.value)),
    )


def _drop(x: TensorExpr, axes: Sequence[int], keepdim: bool) -> TensorExpr:
    """A buffer reduced with its dimensions kept, as an expression without them."""
    if keepdim:
        return x
    left = [dim for n, dim in enumerate(x.dims) if n not in axes]
    dims = dimensions([dim.extent for dim in left])
    remaining = iter(dims)
    places = [x.dims[n].expr * 0 if n in axes else next(remaining).expr for n in range(len(x.dims))]
    return TensorExpr(dims, x.at(places))


def _variance(
    ctx: LoweringContext, x: TensorExpr, axes: Any, correction: Any, keepdim: bool, root: bool
) -> tuple[TensorExpr, TensorExpr]:
    along = axes_of(axes, len(x.dims))
    if x.dtype in PARTS:
        mean, deviation = _of_both_parts(ctx, x, along)
    else:
        mean, deviation = mean_and_deviation(ctx, x, along)
    freedom = _freedom(count(x, along), 1 if correction is None else correction)
    wide = deviation.dtype

    def compute(value: Value) -> Value:
        variance = Op("div", [value, constant(freedom, wide)])
        return Op("sqrt", [variance]) if root else variance

    return finish(ctx, _drop(deviation, along, keepdim), compute), _drop(mean, along, keepdim)


def _freedom(elements: int | IndexExpr, correction: Any) -> Any:
    """What a sum of squares is divided by. Raises OpenSizeError where that is not known."""
    if not isinstance(elements, IndexExpr):
        return max(elements - correction, 0)
    left = elements - correction if isinstance(correction, int) else None
    least = None if left is None else bounds(left)[0]
    if left is None or least is None or least < 0:
        raise OpenSizeError(f"{elements} less {correction}")
    return left


@lowers("var.correction")
def var(ctx: LoweringContext, x: TensorExpr, axes: Any, correction: Any, keepdim: bool) -> Lowered:
    return _variance(ctx, x, axes, correction, keepdim, root=False)[0]


@lowers("std.correction")
def std(ctx: LoweringContext, x: TensorExpr, axes: Any, correction: Any, keepdim: bool) -> Lowered:
    return _variance(ctx, x, axes, correction, keepdim, root=True)[0]


@lowers("var_mean.correction")
def var_mean(
    ctx: LoweringContext, x: TensorExpr, axes: Any, correction: Any, keepdim: bool
) -> Lowered:
    variance, mean = _variance(ctx, x, axes, correction, keepdim, root=False)
    dims = dimensions(mean.shape)
    value = mean.at([dim.expr for dim in dims])
    return variance, ctx.pointwise(dims, value, ctx.results[1])


@lowers("linalg_vector_norm")
def vector_norm(
    ctx: LoweringContext,
    x: TensorExpr,
    order: Any,
    axes: Any,
    keepdim: bool,
    dtype: torch.dtype | None,
) -> Lowered:
    if ctx.result.is_complex():
        return None
    if x.dtype in PARTS:
        x = TensorExpr(x.dims, complex_magnitude(x.value))
    along = axes_of(axes, len(x.dims))
    if (order < 0 or order == math.inf) and count(x, along) == 0:
        return None
    element = cast(x.value, accumulation_dtype(from_torch_dtype(ctx.result.dtype)))
    kind, magnitude, root = _norm_parts(element, order)
    source = TensorExpr(x.dims, magnitude)
    total = ctx.reduce(source, along, kind, keepdim=keepdim, name="norm")
    return finish(ctx, total, root)


def _norm_parts(
    element: Value, order: float
) -> tuple[ReductionKind, Value, Callable[[Value], Value] | None]:
    """What each element adds to a norm, how, and what is taken of the result."""
    size = Op("abs", [element])
    if abs(order) == math.inf:
        return (ReductionKind.MAX if order > 0 else ReductionKind.MIN), size, None
    if order == 0:
        return ReductionKind.SUM, cast(truth(element), element.dtype), None
    if order == 1:
        return ReductionKind.SUM, size, None
    if order == 2:
        square = Op("mul", [element, element])
        return ReductionKind.SUM, square, lambda value: Op("sqrt", [value])
    power, inverse = constant(order, element.dtype), constant(1 / order, element.dtype)
    return ReductionKind.SUM, Op("pow", [size, power]), lambda value: Op("pow", [value, inverse])
