"""From where to where a block of queries sees keys, as Triton expressions of scalars.

Each limit has two sides: keys that some row of the block may see, which have to be read, and keys
that all its rows see, for which no mask need be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait_ir_lowering import IndexExpr, Var, as_index, stride_of, substitute
from plait_scheduler import KeyLimit, Limits


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The first key and the one behind the last, None where there is no limit."""

    low: str | None = None
    high: str | None = None


@dataclass(frozen=True, slots=True)
class SeenKeys:
    """Keys that some row of a block sees, and keys that all of its rows see."""

    some: KeyRange
    all: KeyRange


EVERY = SeenKeys(KeyRange(), KeyRange())


@dataclass(frozen=True, slots=True)
class LimitWriter:
    """Writes limits for rows from `first` to `last`, two scalars of the kernel."""

    row: Var
    first: Var
    last: Var
    index: Callable[[IndexExpr], str]

    def seen(self, limits: Limits) -> SeenKeys:
        """The keys within some limits."""
        if isinstance(limits, KeyLimit):
            return self._limit(limits)
        parts = [self.seen(part) for part in limits.parts]
        return _any_of(parts) if limits.is_any else all_of(parts)

    def _limit(self, limit: KeyLimit) -> SeenKeys:
        ends = [substitute(limit.place, {self.row: end.expr}) for end in (self.first, self.last)]
        step = stride_of(limit.place, self.row) or as_index(0)
        if step.as_int() < 0:
            ends.reverse()
        lowest, highest = ends
        if limit.is_low:
            return SeenKeys(KeyRange(self._text(lowest)), KeyRange(self._text(highest)))
        return SeenKeys(
            KeyRange(None, self._text(highest + 1)), KeyRange(None, self._text(lowest + 1))
        )

    def _text(self, expr: IndexExpr) -> str:
        return self.index(expr)


def all_of(parts: Sequence[SeenKeys]) -> SeenKeys:
    """The keys within all of some limits."""
    return SeenKeys(_met([part.some for part in parts]), _met([part.all for part in parts]))


def _any_of(parts: Sequence[SeenKeys]) -> SeenKeys:
    """The keys within any of some limits; of those that all rows see, one range."""
    some, every = [part.some for part in parts], [part.all for part in parts]
    around = KeyRange(
        _combined("tl.minimum", [each.low for each in some], every=True),
        _combined("tl.maximum", [each.high for each in some], every=True),
    )
    if all(each.low is None for each in every):
        return SeenKeys(
            around,
            KeyRange(None, _combined("tl.maximum", [each.high for each in every], every=True)),
        )
    if all(each.high is None for each in every):
        return SeenKeys(
            around, KeyRange(_combined("tl.minimum", [each.low for each in every], every=True))
        )
    return SeenKeys(around, every[0])


def _met(ranges: Sequence[KeyRange]) -> KeyRange:
    return KeyRange(
        _combined("tl.maximum", [each.low for each in ranges]),
        _combined("tl.minimum", [each.high for each in ranges]),
    )


def _combined(function: str, texts: Sequence[str | None], *, every: bool = False) -> str | None:
    """The least or the most of some limits; None where there is none, or (`every`) not each."""
    known = [text for text in texts if text is not None]
    if not known or (every and len(known) < len(texts)):
        return None
    found = known[0]
    for other in known[1:]:
        found = found if other == found else f"{function}({found}, {other})"
    return found
