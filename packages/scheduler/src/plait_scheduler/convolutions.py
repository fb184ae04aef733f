"""Convolutions as sums of products, which kernels that multiply matrices carry out.

The rows of the matrices are places of the result, the columns its channels, the terms taps and
channels of the image: neighbours in memory, where channels are last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait_ir_lowering import (
    Const,
    DType,
    ExternArg,
    ExternCall,
    ExternList,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Masked,
    Op,
    Value,
    Var,
    as_index,
    bounds,
)
from plait_utils import dataclass

CONVOLUTION = "aten::convolution"
Element = Callable[[ExternArg, Sequence[IndexExpr]], Load | None]
"""The element of a tensor at a place; None where its buffer has no such coordinates."""


@dataclass(frozen=True, slots=True)
class Window:
    """What a convolution reads along one axis of an image.

    Attributes:
        extent: of the image.
        taps: of the window, `spread` apart.
        step: from a window to the next.
        pad: zeros in front of the image.
    """

    extent: int
    taps: int
    step: int
    pad: int
    spread: int

    def place(self, at: IndexExpr, tap: IndexExpr) -> IndexExpr:
        """Where in the image a tap lies; maybe outside of it."""
        return at * self.step + tap * self.spread - self.pad

    def checks(self, place: IndexExpr) -> list[Value]:
        """What has to hold for the image to have the place, as far as it may not."""
        low, high = bounds(place)
        found: list[Value] = []
        if low is None or low < 0:
            found.append(Op("ge", [_number(place), Const(0, DType.i32)]))
        if high is None or high >= self.extent:
            found.append(Op("lt", [_number(place), Const(self.extent, DType.i32)]))
        return found


def _number(place: IndexExpr) -> Value:
    """A place along an axis, which 32 bits hold."""
    return Op("to", [IndexValue(place)], DType.i32)


def obstacle_of(body: ExternCall, image: Layout, weight: Layout) -> str | None:
    """Why a convolution is no sum of products of an image and a weight; None where it is."""
    if not all(each.is_constant for each in (*image.size, *weight.size)):
        return "its sizes are open"
    if bool(body.args[6]):
        return "it is transposed"
    if body.args[8] != 1:
        return "its channels are in groups"
    if image.stride[1] is not as_index(1):
        return "the channels of its image are not last in memory"
    return None


def is_of_points(body: ExternCall, weight: Layout) -> bool:
    """Whether each place of the result comes from the same place of the image alone."""
    rank = len(weight.size) - 2
    steps, pads = (_numbers(body.args[n], rank) for n in (3, 4))
    taps = [each.as_int() for each in weight.size[2:]]
    return steps == [1] * rank and pads == [0] * rank and taps == [1] * rank


def terms_of(
    body: ExternCall, image: Layout, weight: Layout, place: Sequence[IndexExpr], element: Element
) -> tuple[tuple[Var, ...], Value, Value] | None:
    """What is summed up for an element of the result: the variables of its terms, and both factors,
    zero where the image ends; None where a factor has no coordinates."""
    windows = _windows(body, image, weight)
    taps = [Var(f"r{n}", as_index(window.taps)) for n, window in enumerate(windows)]
    channel = Var(f"r{len(taps)}", image.size[1])
    places = [
        window.place(at, tap.expr) for window, at, tap in zip(windows, place[2:], taps, strict=True)
    ]
    left = element(body.args[0], [place[0], channel.expr, *places])
    right = element(body.args[1], [place[1], channel.expr, *(tap.expr for tap in taps)])
    if left is None or right is None:
        return None
    checks = [
        check for window, at in zip(windows, places, strict=True) for check in window.checks(at)
    ]
    return (*taps, channel), _within(checks, left), right


def _windows(body: ExternCall, image: Layout, weight: Layout) -> list[Window]:
    rank = len(weight.size) - 2
    steps, pads, spreads = (_numbers(body.args[n], rank) for n in (3, 4, 5))
    sizes = [each.as_int() for each in image.size[2:]]
    taps = [each.as_int() for each in weight.size[2:]]
    return [Window(*each) for each in zip(sizes, taps, steps, pads, spreads, strict=True)]


def _numbers(given: ExternArg, rank: int) -> list[int]:
    """A number for each axis, of which a single one stands for all."""
    assert isinstance(given, ExternList)
    found = [int(str(each)) for each in given.items]
    return found if len(found) == rank else found * rank


def _within(checks: Sequence[Value], load: Load) -> Value:
    if not checks:
        return load
    first, *others = checks
    for check in others:
        first = Op("logical_and", [first, check])
    return Masked(first, load, Const(0, load.dtype))
