"""Windows that move over the last axes of an image: their elements, and which of them exist."""

from __future__ import annotations

from collections.abc import Sequence

from plait_ir_lowering.context import LoweringContext
from plait_ir_lowering.ir.index import IndexExpr, Var, as_index, bounds
from plait_ir_lowering.ir.values import IndexValue, Masked, Op, Value
from plait_ir_lowering.rules.gathering import integer
from plait_ir_lowering.tensors import TensorExpr, dimensions
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """The window along one axis: it starts at `start` and has `size` elements, `step` apart.

    `stop`, where windows differ in size, is the place before which this one's elements lie.
    """

    extent: int
    """Of the image."""
    start: IndexExpr
    size: int
    step: int = 1
    stop: IndexExpr | None = None

    def place(self, number: IndexExpr | int) -> IndexExpr:
        """Where element `number` of the window is; maybe outside of the image."""
        return self.start + as_index(number) * self.step

    def checks(self, place: IndexExpr) -> list[Value]:
        """What has to hold for the element at `place` to exist, as far as it may not."""
        low, high = bounds(place)
        found: list[Value] = []
        if low is None or low < 0:
            found.append(Op("ge", [IndexValue(place), integer(0)]))
        if high is None or high >= self.extent:
            found.append(Op("lt", [IndexValue(place), integer(self.extent)]))
        if self.stop is not None:
            found.append(Op("lt", [IndexValue(place), IndexValue(self.stop)]))
        return found


def windows_at(place: IndexExpr, count: int, step: int, pad: int, size: int) -> Span:
    """The windows, of `count`, that an element is in."""
    most = -(-size // step)
    first = (place + (pad + most * step - size)) // step + (1 - most)
    stop = None if size % step == 0 else (place + pad) // step + 1
    return Span(count, first, most, 1, stop)


def numbers_of(given: Sequence[int], rank: int) -> tuple[int, ...]:
    """One number for each axis, of which a single one stands for all."""
    return tuple(given) if len(given) == rank else (given[0],) * rank


def result_dims(ctx: LoweringContext) -> tuple[Var, ...]:
    """The dimensions of the node's result."""
    return dimensions(ctx.result.shape)


def window_element(
    x: TensorExpr,
    around: Sequence[IndexExpr],
    spans: Sequence[Span],
    numbers: Sequence[IndexExpr | int],
    outside: Value,
) -> Value:
    """The window's element `numbers`, or `outside` where there is none."""
    places = [span.place(number) for span, number in zip(spans, numbers, strict=True)]
    inside = x.at([*around, *places])
    mask = existing(spans, places)
    return inside if mask is None else Masked(mask, inside, outside)


def existing(spans: Sequence[Span], places: Sequence[IndexExpr]) -> Value | None:
    """Whether there is an element at `places`; None where there always is."""
    checks = [check for span, at in zip(spans, places, strict=True) for check in span.checks(at)]
    mask: Value | None = None
    for check in checks:
        mask = check if mask is None else Op("logical_and", [mask, check])
    return mask


def count_along(span: Span, padded_to: int | None = None, before: int = 0) -> Value:
    """How many elements of a window with no gaps exist, as an i64 value.

    With `padded_to`, `before` places in front and all up to that one behind count too.
    """
    first: Value = IndexValue(span.start)
    limit = span.extent if padded_to is None else padded_to
    last: Value = IndexValue(span.start + span.size if span.stop is None else span.stop)
    low = bounds(span.start)[0]
    if low is None or low < -before:
        first = Op("maximum", [first, integer(-before)])
    return Op("sub", [Op("minimum", [last, integer(limit)]), first])
