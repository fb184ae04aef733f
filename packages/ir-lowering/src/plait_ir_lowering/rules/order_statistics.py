"""The k-th smallest element of each row, and medians, on GPUs: from rows sorted in registers.

Of the least keys the one at a place is wanted, which is known, or follows from how many of a row
are NaN. A reduction takes it, for which the others are largest: so they are in no memory, and what
is before and behind is in the kernel, as with top-k.

Of equal elements eager on a GPU tells the position of any, which its threads write in any order;
where `torch.use_deterministic_algorithms` is on it raises an error, and is called to do so. Here it
is the one that a stable sort has at that place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Pointwise, row_major
from plait_ir_lowering.ir.index import ONE, ZERO, Var
from plait_ir_lowering.ir.ops import ReductionKind
from plait_ir_lowering.ir.values import IndexValue, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.sorted_rows import Rows, rows_of
from plait_ir_lowering.tensors import TensorExpr, dimensions


@lowers("kthvalue")
def kthvalue(ctx: LoweringContext, x: TensorExpr, k: object, axis: int, keepdim: bool) -> Lowered:
    length = _length(x, axis)
    if length is None or not isinstance(k, int) or ctx.options.deterministic:
        return None
    from_end = 2 * k > length + 1
    place = length - k if from_end else k - 1
    rows = rows_of(ctx, x, axis, _kept(place, length), descending=from_end, alone=True)
    if rows is None:
        return None
    return _at_place(ctx, rows, place, constant(place, DType.i64), ctx.results)


@lowers("median.dim")
def median_dim(ctx: LoweringContext, x: TensorExpr, axis: int, keepdim: bool) -> Lowered:
    return _median_of_rows(ctx, x, axis, ignores_nan=False)


@lowers("nanmedian.dim")
def nanmedian_dim(ctx: LoweringContext, x: TensorExpr, axis: int, keepdim: bool) -> Lowered:
    return _median_of_rows(ctx, x, axis, ignores_nan=True)


@lowers("median")
def median(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return _median_of_all(ctx, x, ignores_nan=False)


@lowers("nanmedian")
def nanmedian(ctx: LoweringContext, x: TensorExpr) -> Lowered:
    return _median_of_all(ctx, x, ignores_nan=True)


def _median_of_rows(
    ctx: LoweringContext, x: TensorExpr, axis: int, *, ignores_nan: bool
) -> Lowered:
    if ctx.options.deterministic:
        return None
    return _median(ctx, x, axis, ctx.results, ignores_nan=ignores_nan, alone=True)


def _median_of_all(ctx: LoweringContext, x: TensorExpr, *, ignores_nan: bool) -> Lowered:
    row = _in_one_row(x)
    found = _median(ctx, row, 0, [ctx.result], ignores_nan=ignores_nan, alone=False)
    return None if found is None else found[0]


def _median(
    ctx: LoweringContext,
    x: TensorExpr,
    axis: int,
    likes: Sequence[torch.Tensor],
    *,
    ignores_nan: bool,
    alone: bool,
) -> tuple[TensorExpr, ...] | None:
    """The lower one of two elements in the middle. NaN where a row has one, unless it is ignored:
    then of the others, if there are any.

    NaN is first in descending order, and last in ascending order.
    """
    length = _length(x, axis)
    if length is None:
        return None
    middle = (length - 1) // 2 if ignores_nan else length // 2
    kept = _kept(middle, length)
    rows = rows_of(ctx, x, axis, kept, descending=not ignores_nan, alone=alone)
    if rows is None:
        return None
    place: Value = constant(middle, DType.i64)
    if x.dtype.is_float:
        place = _place_beside_nan(ctx, x, rows.along, place, ignores_nan=ignores_nan)
    return _at_place(ctx, rows, middle, place, likes)


def _place_beside_nan(
    ctx: LoweringContext, x: TensorExpr, along: int, middle: Value, *, ignores_nan: bool
) -> Value:
    """Where the median of each row is, in the orders that `_median` says."""
    is_nan = Op("isnan", [x.value])
    zero = constant(0, DType.i64)
    if not ignores_nan:
        flags = TensorExpr(x.dims, is_nan)
        found = ctx.reduce(flags, [along], ReductionKind.ANY, keepdim=False, name="nan")
        return Op("where", [found.value, zero, middle])
    numbers = TensorExpr(x.dims, cast(Op("logical_not", [is_nan]), DType.i64))
    found = ctx.reduce(numbers, [along], ReductionKind.SUM, keepdim=False, name="numbers")
    last = Op("maximum", [Op("sub", [found.value, constant(1, DType.i64)]), zero])
    return Op("rshift", [last, constant(1, DType.i64)])


def _at_place(
    ctx: LoweringContext, rows: Rows, most: int, place: Value, likes: Sequence[torch.Tensor]
) -> tuple[TensorExpr, ...]:
    """The element of each row at `place`, which is at most `most`, and its position, as far as
    `likes` has results for them."""
    along, kept = rows.along, _kept(most, rows.length)
    shape = rows.words[0].shape
    dims, number = dimensions([*shape[:along], *shape[along + 1 :]]), Var("r0", kept)
    places = [dim.expr for dim in dims]
    inside = [*places[:along], number.expr, *places[along:]]
    is_wanted = Op("eq", [IndexValue(number.expr), place])
    key = [
        ctx.combined(
            dims,
            (number,),
            ReductionKind.MIN,
            Op("where", [is_wanted, word.at(inside), largest]),
            "chosen",
        )
        for word, largest in zip(rows.least(ctx, kept).words, rows.keys.largest, strict=True)
    ]
    made = dimensions(likes[0].shape)
    own = [dim.expr for dim in made]
    if len(made) > len(dims):
        del own[along]
    words = [word.at(own) for word in key]
    results = (rows.keys.element_of(words), rows.keys.position_of(words))
    pairs = zip(results, likes, strict=False)
    return tuple(ctx.define(Pointwise(made, result), like) for result, like in pairs)


def _kept(place: int, length: int) -> int:
    """How many of the least are taken for the one at a place: not one alone, of which a row would
    not be a row any more."""
    return min(max(place + 1, 2), length)


def _length(x: TensorExpr, axis: int) -> int | None:
    """Of rows, if it is known and they are of what eager has an order for."""
    if not x.dims or x.dtype is DType.bool_ or not x.shape[axis].is_constant:
        return None
    return x.shape[axis].as_int() or None


def _in_one_row(x: TensorExpr) -> TensorExpr:
    """All elements along one dimension."""
    total = ONE
    for extent in x.shape:
        total = total * extent
    (row,) = dimensions([total])
    places = [
        ZERO if extent is ONE or total is ZERO else row.expr // stride % extent
        for extent, stride in zip(x.shape, row_major(x.shape), strict=True)
    ]
    return TensorExpr((row,), x.at(places))
