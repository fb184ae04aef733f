"""Rules of normal, log-normal and exponential numbers and of integers that operators draw on GPUs.

Each gives the nodes that take the place of a node's results, or None where ATen draws otherwise.
"""

from __future__ import annotations

import torch
from torch import fx

from plait_fx_passes.passes.drawing import Drawing, Made, is_distribution, wide
from plait_utils.philox import UNROLL
from plait_utils.philox_agreement import FLOATS
from plait_utils.philox_numbers import (
    EXP,
    FMA,
    INTEGERS,
    LOG,
    NORMAL,
    Integers,
    exponential_numbers,
    integers_between,
    integers_unbounded,
)

aten = torch.ops.aten


def _normals(drawing: Drawing, mean: float | None, deviation: float | None) -> fx.Node | None:
    """In the dtype that ATen computes them in."""
    dtype = drawing.value.dtype
    if dtype not in FLOATS or not is_distribution(drawing):
        return None
    if mean is None or deviation is None or not deviation >= 0:
        return None
    computed = wide(dtype)
    made = drawing.of_distribution(NORMAL, UNROLL[computed], computed, computed)
    return drawing.calls(FMA, made, deviation, mean)


def _cast(drawing: Drawing, made: fx.Node | None) -> Made:
    return None if made is None else (drawing.cast(made),)


def standard_normal(drawing: Drawing) -> Made:
    return _cast(drawing, _normals(drawing, 0.0, 1.0))


def normal_of_size(drawing: Drawing) -> Made:
    return _cast(drawing, _normals(drawing, drawing.number(0), drawing.number(1)))


def normal(drawing: Drawing) -> Made:
    return _cast(drawing, _normals(drawing, drawing.number(1, 0.0), drawing.number(2, 1.0)))


def normal_around(drawing: Drawing) -> Made:
    """A tensor's elements are added to what is rounded already."""
    made = _cast(drawing, _normals(drawing, 0.0, drawing.number(1, 1.0)))
    if made is None:
        return None
    mean = drawing.node.args[0]
    return (drawing.calls(aten.add.Tensor, made[0], mean),)


def log_normal(drawing: Drawing) -> Made:
    made = _normals(drawing, drawing.number(1, 1.0), drawing.number(2, 2.0))
    return _cast(drawing, None if made is None else drawing.calls(EXP, made))


def exponential(drawing: Drawing) -> Made:
    dtype, rate = drawing.value.dtype, drawing.number(1, 1.0)
    if dtype not in FLOATS or not is_distribution(drawing) or rate is None or not rate > 0:
        return None
    calls = drawing.calls
    drawn = drawing.numbers(wide(dtype))
    limit, scale = exponential_numbers(rate, wide(dtype))
    is_one = calls(aten.ge.Scalar, drawn, 1 - limit)
    logarithm = calls(aten.where.ScalarSelf, is_one, -limit, calls(LOG, drawn))
    return _cast(drawing, calls(aten.mul.Tensor, logarithm, scale))


def _integers(drawing: Drawing, made: Integers | None) -> Made:
    if made is None or not is_distribution(drawing):
        return None
    unroll = 4 // made.words
    return _cast(drawing, drawing.of_distribution(INTEGERS, unroll, torch.int64, *made))


def _between(drawing: Drawing, low: int | None, high: int | None) -> Made:
    if low is None or high is None:
        return None
    return _integers(drawing, integers_between(low, high, drawing.value.dtype))


def integers_below(drawing: Drawing) -> Made:
    return _between(drawing, 0, drawing.integer(0))


def integers(drawing: Drawing) -> Made:
    return _between(drawing, drawing.integer(0), drawing.integer(1))


def integers_like_below(drawing: Drawing) -> Made:
    return _between(drawing, 0, drawing.integer(1))


def integers_like(drawing: Drawing) -> Made:
    return _between(drawing, drawing.integer(1), drawing.integer(2))


def any_integers(drawing: Drawing) -> Made:
    return _integers(drawing, integers_unbounded(drawing.value.dtype))
