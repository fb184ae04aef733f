"""Convolutions that are so small that calls of a library cost more than they do."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from plait_ir_lowering.context import LoweringContext, cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import IndexExpr, Var, as_index
from plait_ir_lowering.ir.ops import PARTS, ReductionKind
from plait_ir_lowering.ir.values import IndexValue, Masked, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.complex_formulas import op
from plait_ir_lowering.rules.complex_numbers import pair, parts
from plait_ir_lowering.rules.gathering import integer, nothing
from plait_ir_lowering.rules.reductions import products_dtype
from plait_ir_lowering.rules.windows import Span, numbers_of, result_dims
from plait_ir_lowering.tensors import TensorExpr, dimensions

_DEARER = 4
"""About how much more a product costs than in a small matrix product, for its checks."""


@lowers("convolution", kind="external call, loops if small")
def convolution(
    ctx: LoweringContext,
    x: TensorExpr,
    weight: TensorExpr,
    bias: TensorExpr | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Lowered:
    rank = len(weight.dims) - 2
    if not x.dtype.is_float and (x.dtype is DType.bool_ or ctx.result.device.type != "cpu"):
        return None  # an error, which ATen raises
    if x.dtype is not weight.dtype or len(x.dims) != rank + 2:
        return None
    if not ctx.result.numel():
        return nothing(ctx)
    inside = x.shape[1].as_int() // groups
    window = [extent.as_int() for extent in weight.shape[2:]]
    if ctx.result.numel() * inside * prod(window) > ctx.options.small_matmul_work // _DEARER:
        return None
    dims = result_dims(ctx)
    reduced = dimensions([inside, *window], "r")
    steps, pads = numbers_of(stride, rank), numbers_of(padding, rank)
    spreads = numbers_of(dilation, rank)
    places: list[IndexExpr] = []
    checks: list[Value] = []
    for n in range(rank):
        extent, tap = x.shape[2 + n].as_int(), reduced[1 + n].expr * spreads[n]
        if transposed:  # an element of the image spreads to each place a tap behind it
            distance = dims[2 + n].expr + pads[n] - tap
            span = Span(extent, distance // steps[n], 1)
            if steps[n] > 1:
                checks.append(Op("eq", [IndexValue(distance % steps[n]), integer(0)]))
        else:
            span = Span(extent, dims[2 + n].expr * steps[n] - pads[n] + tap, 1)
        places.append(span.place(0))
        checks += span.checks(span.place(0))
    element = _element(x, weight, dims, reduced, places, checks, groups, transposed)
    terms = parts(element) if element.dtype in PARTS else (element,)
    totals = [ctx.combined(dims, reduced, ReductionKind.SUM, each, "sum") for each in terms]
    sums = [total.at([dim.expr for dim in dims]) for total in totals]
    value = pair(*sums) if element.dtype in PARTS else sums[0]
    if bias is not None:
        value = op("add", [value, cast(bias.at([dims[1].expr]), value.dtype)])
    return ctx.pointwise(dims, value)


def _element(
    x: TensorExpr,
    weight: TensorExpr,
    dims: Sequence[Var],
    reduced: Sequence[Var],
    places: Sequence[IndexExpr],
    checks: Sequence[Value],
    groups: int,
    transposed: bool,
) -> Value:
    """A tap times the element under it, which may be one of the padding's zeros."""
    wide = products_dtype(x.dtype)
    taps = [var.expr for var in reduced[1:]]
    channel, inside = dims[1].expr, reduced[0].expr
    count = reduced[0].extent
    each = dims[1].extent.as_int() // groups
    group = channel // each if groups > 1 else as_index(0)
    source = group * count + inside
    if transposed:
        tap = weight.at([source, channel % each, *taps])
    else:
        tap = weight.at([channel, inside, *taps])
    found = x.at([dims[0].expr, source, *places])
    mask: Value | None = None
    for check in checks:
        mask = check if mask is None else Op("logical_and", [mask, check])
    if mask is not None:
        found = Masked(mask, found, constant(0, x.dtype))
    return op("mul", [cast(found, wide), cast(tap, wide)])
