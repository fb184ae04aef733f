"""Which sizes and numbers of a call are symbolic."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from enum import IntEnum
from typing import TypeAlias

import torch

from plait_bytecode_tracer.shapes.marks import Mark, marks_of
from plait_bytecode_tracer.values.sources import Access, Source
from plait_utils import dataclass

Seen: TypeAlias = dict[str, tuple[int | float, ...]]
"""What earlier calls had at each place: a number, or a tensor's sizes and then its strides."""

_UNKNOWN = float("nan")
"""Stands for a number that has changed already."""
_NUMBERED = re.compile(r"_c\d+")
_INT64 = 1 << 63


class Checks(IntEnum):
    """Where a graph may check what is expected of data."""

    NEVER = 0
    UNCHANGED = 1
    """Before it changes tensors of the caller's."""
    ANYWHERE = 2


@dataclass(slots=True)
class History:
    """What the calls that were compiled so far have had."""

    seen: Seen = field(default_factory=dict)


@dataclass(slots=True)
class Policy:
    """Decides for one trace.

    Args:
        dynamic: True, whatever a caller passes; None, what has changed since earlier traces;
            False, nothing.
        history: the earlier traces; this one is added to it by `remember`.
        marks: what was said of arguments by name.
        data_dependent: whether graphs may compute numbers and sizes that depend on data.
        data_floats: whether they may compute floats that do.
        data_sizes: whether operators may give sizes that do, where what is compiled checks all that
            was assumed of these.
        checks: where graphs may check what is expected of data, and fail.
        orders_draws: whether graphs may set random generators between what they draw.
        watched_changes: whether graphs that may fail where somebody sees that may change tensors of
            the caller's: they must have changed nothing then.
        is_last: whether no further specialisation can be made: what has changed breaks the graph
            where its value is needed, so that this one fits calls with other values too.
    """

    dynamic: bool | None = False
    history: History = field(default_factory=History)
    marks: Mapping[str, Mark] = field(default_factory=dict)
    data_dependent: bool = False
    data_floats: bool = False
    data_sizes: bool = False
    checks: Checks = Checks.ANYWHERE
    orders_draws: bool = False
    watched_changes: bool = False
    is_last: bool = False
    found: Seen = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    before: Seen = field(default_factory=dict)
    """What earlier traces had had at the places of this one when it was made."""

    def number(self, source: Source, value: int | float) -> Mark | None:
        """The bounds of an int or float that is to be symbolic; None if it is a constant."""
        before = self._compare(source, (value,))
        if self.dynamic is False or (isinstance(value, int) and abs(value) >= _INT64):
            return None
        mark = self.marks.get(source.text) if source.access is Access.ARGUMENT else None
        if mark is not None:
            return mark if mark.changes and mark.allows(value) else None
        changes = before is not None and before[0] != value
        if value != value:  # NaN tells by its identity what it is equal to
            return None
        if changes or (self.dynamic and _is_passed(source)):
            return Mark(True)
        return None

    def text_changes(self, source: Source, value: str | bytes) -> bool:
        """Whether a text was another in an earlier trace."""
        now = float(hash(value) % _INT64)  # texts that grow are not kept
        before = self._compare(source, (now,))
        return self.dynamic is not False and before is not None and before[0] != now

    def has_changed(self, source: Source, value: float) -> bool:
        """Whether a number that is no symbol was another in an earlier trace."""
        before = self._compare(source, (value,))
        is_nan = value != value and before is not None and before[0] != before[0]
        return (
            self.dynamic is not False and before is not None and before[0] != value and not is_nan
        )

    def sizes(self, source: Source, tensor: torch.Tensor) -> dict[int, Mark]:
        """The dimensions of a tensor that are to be symbolic."""
        before = self._compare(source, (*tensor.shape, *tensor.stride()))
        if self.dynamic is False:
            return {}
        marks = marks_of(tensor)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        chosen: dict[int, Mark] = {}
        for dim, size in enumerate(tensor.shape):
            mark = marks.get(dim)
            if mark is None and not is_parameter:
                changes = before is not None and before[dim] != size
                if changes or (self.dynamic and _is_passed(source)):
                    mark = Mark(True)
            if mark is not None and mark.changes and size > 1 and mark.allows(size):
                chosen[dim] = mark
        return chosen

    def stride_changes(self, source: Source, tensor: torch.Tensor, dim: int) -> bool | None:
        """Whether a stride has changed; None if nothing is known of it."""
        before = self.history.seen.get(self._key(source))
        if before is None or len(before) != 2 * tensor.dim():
            return None
        return before[tensor.dim() + dim] != tensor.stride(dim)

    def is_refused(self, source: Source, place: int = 0) -> bool:
        """Whether the value of a number that has changed is not to be assumed any more.

        `place` is the position of the number among those that are known of the source.
        """
        if not self.is_last:
            return False
        key = self._key(source)
        before, now = self.history.seen.get(key), self.found.get(key)
        if before is None or now is None or max(len(before), len(now)) <= place:
            return before is not None and now is not None
        return before[place] != now[place]

    def remember(self) -> None:
        """Let later traces know what this call had."""
        for key, now in self.found.items():
            before = self.history.seen.get(key)
            if before is not None:
                self.before[key] = before
            if before is None or len(before) != len(now):
                self.history.seen[key] = now
            else:
                pairs = zip(before, now, strict=True)
                self.history.seen[key] = tuple(a if a == b else _UNKNOWN for a, b in pairs)

    def again(self) -> Policy:
        """A policy that decides for another trace as this one, which is remembered, has done."""
        before = History(dict(self.before))
        return replace(self, history=before, found={}, keys={}, counts=Counter(), before={})

    def _compare(self, source: Source, now: tuple[int | float, ...]) -> tuple[float, ...] | None:
        key = self._key(source)
        self.found[key] = now
        before = self.history.seen.get(key)
        return before if before is not None and len(before) == len(now) else None

    def _key(self, source: Source) -> str:
        """A name of the place that is the same in every trace."""
        known = self.keys.get(source.code)
        if known is None:
            plain = f"{_NUMBERED.sub('_c', source.code)} {source.text}"
            self.counts[plain] += 1
            known = f"{plain} {self.counts[plain]}"
            self.keys[source.code] = known
        return known


def _is_passed(source: Source) -> bool:
    """Whether the caller passes it: as an argument, or in a container among these."""
    while source.access is Access.ITEM and source.base is not None:
        source = source.base
    return source.access is Access.ARGUMENT
