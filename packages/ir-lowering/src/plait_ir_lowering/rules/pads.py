"""Padding with elements of the tensor: mirrored at its ends, or the last one again."""

from __future__ import annotations

from collections.abc import Sequence

from plait_ir_lowering.context import LoweringContext, constant
from plait_ir_lowering.ir.index import ZERO, IndexExpr, as_index
from plait_ir_lowering.ir.values import IndexValue, Masked, Op, Value
from plait_ir_lowering.registry import Lowered, lowers
from plait_ir_lowering.rules.gathering import Place, as_value, gathered, integer, nothing, readable
from plait_ir_lowering.rules.windows import result_dims
from plait_ir_lowering.tensors import TensorExpr
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class _Side:
    """Elements in front of the first one, or behind the last."""

    is_there: Value
    place: IndexExpr


def _sides(place: IndexExpr, size: int, before: int, after: int, mirrored: bool) -> list[_Side]:
    last = size - 1
    found = []
    if before > 0:
        is_before = Op("lt", [IndexValue(place), integer(0)])
        found.append(_Side(is_before, -place if mirrored else ZERO))
    if after > 0:
        is_behind = Op("gt", [IndexValue(place), integer(last)])
        found.append(_Side(is_behind, 2 * last - place if mirrored else as_index(last)))
    return found


def _padded(ctx: LoweringContext, x: TensorExpr, pad: Sequence[int], mirrored: bool) -> Lowered:
    """Pairs of sizes in `pad`, from the last axis on; negative ones leave elements out.

    Along the last axis each side is read by itself, in vectors; where the others are is computed.
    """
    if not ctx.result.numel():
        return nothing(ctx)
    dims = result_dims(ctx)
    places: list[Place] = [dim.expr for dim in dims]
    sides: list[_Side] = []
    for number in range(len(pad) // 2):
        axis = len(dims) - 1 - number
        before, after = pad[2 * number], pad[2 * number + 1]
        place = dims[axis].expr - before
        places[axis] = place
        found = _sides(place, x.shape[axis].as_int(), before, after, mirrored)
        if number == 0:
            sides = found
            continue
        for side in found:
            places[axis] = Op(
                "where", [side.is_there, as_value(side.place), as_value(places[axis])]
            )
    source = readable(ctx, x)
    inside = gathered(source, places)
    if not sides:
        return ctx.pointwise(dims, inside)
    value: Value = constant(0, x.dtype)
    within: Value | None = None
    for side in sides:
        value = Masked(side.is_there, gathered(source, [*places[:-1], side.place]), value)
        is_not = Op("logical_not", [side.is_there])
        within = is_not if within is None else Op("logical_and", [within, is_not])
    assert within is not None, "there are sides"
    return ctx.pointwise(dims, Masked(within, inside, value))


@lowers("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(ctx: LoweringContext, x: TensorExpr, pad: Sequence[int]) -> Lowered:
    return _padded(ctx, x, pad, mirrored=True)


@lowers("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(ctx: LoweringContext, x: TensorExpr, pad: Sequence[int]) -> Lowered:
    return _padded(ctx, x, pad, mirrored=False)
