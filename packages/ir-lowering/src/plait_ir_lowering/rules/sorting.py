"""Sorts of short rows, which keep the order of equal elements, and top-k of these.

On GPUs rows are sorted in registers (`sorted_rows.py`, `order_statistics.py`). Elsewhere sorts of
very short rows count for each element those that come before it.

On CPUs `topk`, `kthvalue` and `median` stay ATen's: which of equal elements they tell the position
of follows from how ATen partitions, and their values alone are hardly ever asked for. On GPUs they
are told to be free in that, in eager too (see `docs/numerics.md`). `mode` stays ATen's everywhere:
which of the elements that are as frequent it gives follows from how its threads compare.
"""

from __future__ import annotations

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import Pointwise, Reduction
from plait_ir_lowering.ir.index import Var
from plait_ir_lowering.ir.ops import ReductionKind
from plait_ir_lowering.ir.values import IndexValue, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.gathering import Place, gathered, readable
from plait_ir_lowering.rules.sorted_rows import sorted_rows
from plait_ir_lowering.tensors import TensorExpr, dimensions

_LONGEST = 32
"""Elements of a row up to which comparing all pairs, by vectors, costs less than ATen's sort."""
_IN_ORDER = 16
"""Up to which ATen's sort that need not be stable is on CPUs."""


def _precedes(a: Value, b: Value, *, descending: bool) -> Value:
    """Whether `a` is sorted before `b`; NaN is larger than everything."""
    found = Op("gt" if descending else "lt", [a, b])
    if not a.dtype.is_float:
        return found
    first, last = (a, b) if descending else (b, a)
    alone = Op("logical_and", [Op("isnan", [first]), Op("logical_not", [Op("isnan", [last])])])
    return Op("logical_or", [alone, found])


def _ranks(ctx: LoweringContext, x: TensorExpr, axis: int, *, descending: bool) -> TensorExpr:
    """For each element its place among those of its row, as i32."""
    dims = dimensions(x.shape)
    other = Var("r0", dims[axis].extent)
    here = [dim.expr for dim in dims]
    there = [other.expr if n == axis else place for n, place in enumerate(here)]
    own, rival = (_comparable(x.at(places)) for places in (here, there))
    earlier = Op("lt", [IndexValue(other.expr), IndexValue(here[axis])])
    before = Op(
        "where",
        [
            earlier,
            Op("logical_not", [_precedes(own, rival, descending=descending)]),
            _precedes(rival, own, descending=descending),
        ],
    )
    source = TensorExpr((*dims, other), cast(before, DType.i32))
    return ctx.reduce(source, [len(dims)], ReductionKind.SUM, keepdim=False, name="ranks")


def _comparable(value: Value) -> Value:
    """A value of a type whose registers are ordered."""
    return cast(value, DType.i8) if value.dtype is DType.bool_ else value


@lowers("sort")
def sort(ctx: LoweringContext, x: TensorExpr, axis: int, descending: bool) -> Lowered:
    return stable_sort(ctx, x, False, axis, descending)


@lowers("sort.stable")
def stable_sort(
    ctx: LoweringContext, x: TensorExpr, stable: bool | None, axis: int, descending: bool
) -> Lowered:
    values, positions = ctx.results
    if x.dtype.kind == "complex":
        return None
    if not x.dims:
        nowhere = Pointwise((), constant(0, DType.i64))
        return ctx.define(Pointwise((), x.value), values), ctx.define(nowhere, positions)
    in_registers = sorted_rows(ctx, x, axis, None, descending=descending)
    if in_registers is not None:
        return in_registers
    along = axis + len(x.dims) if axis < 0 else axis
    extent = x.shape[along]
    longest = _LONGEST if stable else _IN_ORDER
    if ctx.options.exact and not stable and values.device.type != "cpu":
        return None
    if not extent.is_constant or not 0 < extent.as_int() <= longest:
        return None
    elements = readable(ctx, x)
    ranks = _ranks(ctx, elements, along, descending=descending)
    dims = dimensions(x.shape)
    rival = Var("r0", extent)
    places = [dim.expr for dim in dims]
    rank = ranks.at([rival.expr if n == along else place for n, place in enumerate(places)])
    wanted = cast(IndexValue(places[along]), DType.i32)
    zero = constant(0, DType.i64)
    mine = Op("where", [Op("eq", [rank, wanted]), IndexValue(rival.expr), zero])
    found = ctx.define(Reduction(dims, (rival,), ReductionKind.SUM, mine), positions)
    chosen: list[Place] = [*places]
    chosen[along] = found.at(places)
    return ctx.define(Pointwise(dims, gathered(elements, chosen)), values), found


@lowers("topk")
def topk(
    ctx: LoweringContext, x: TensorExpr, k: object, axis: int, largest: bool, is_sorted: bool
) -> Lowered:
    if not isinstance(k, int) or x.dtype is DType.bool_:
        return None
    return sorted_rows(ctx, x, axis, k, descending=largest)
