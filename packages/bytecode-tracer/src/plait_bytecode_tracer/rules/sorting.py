"""Sorting, the least and the greatest."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.arity import refuse_call
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.containers import changed
from plait_bytecode_tracer.objects.indices import as_index
from plait_bytecode_tracer.objects.iteration import elements, iterate
from plait_bytecode_tracer.objects.operations import _call, apply, truth
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.values.hints import sized_elements
from plait_bytecode_tracer.values.variables import (
    SequenceVariable,
    TensorVariable,
    Variable,
    is_none,
)


class _Ranked:
    """An element and what it is ordered by; Python's own sort compares them in its order."""

    __slots__ = ("frame", "item", "rank")

    def __init__(self, frame: Frame, item: Variable, rank: Variable) -> None:
        self.frame = frame
        self.item = item
        self.rank = rank

    def __lt__(self, other: _Ranked) -> bool:
        return truth(self.frame, apply(self.frame, operator.lt, [self.rank, other.rank]))


def sort_items(
    frame: Frame, items: list[Variable], key: Variable | None, reverse: Variable | None
) -> None:
    """Sort in place; what was in order before an exception stays so, as in Python."""
    backwards = reverse is not None and bool(as_index(frame, reverse))
    ranks = items if key is None or is_none(key) else [_call(frame, key, [i]) for i in items]
    ranked = [_Ranked(frame, item, rank) for item, rank in zip(items, ranks, strict=True)]
    try:
        ranked.sort(reverse=backwards)
    finally:
        items[:] = [entry.item for entry in ranked]


class _Emptied(list[Variable]):
    """What a list holds while it is sorted: nothing; it notices what is put in meanwhile."""

    is_filled = False

    def append(self, value: Variable) -> None:
        self.is_filled = True
        super().append(value)

    def extend(self, values: Iterable[Variable]) -> None:
        super().extend(values)
        self.is_filled |= bool(self)

    def insert(self, place: SupportsIndex, value: Variable) -> None:
        self.is_filled = True
        super().insert(place, value)

    def __setitem__(self, place: Any, value: Any) -> None:
        self.is_filled = True
        super().__setitem__(place, value)


def sort_list(
    frame: Frame, owner: SequenceVariable, key: Variable | None, reverse: Variable | None
) -> None:
    """`list.sort`, which finds the list empty while it runs, and what is put in an error."""
    held, meanwhile = owner.items, _Emptied()
    items = list(held)
    owner.items = meanwhile
    try:
        sort_items(frame, items, key, reverse)
    finally:
        owner.items = held
        held[:] = items
        changed(frame, owner)
    if meanwhile.is_filled:
        fails(ValueError, "list modified during sort")


@builtin(sorted)
def sorted_(
    frame: Frame,
    iterable: Variable,
    /,
    *,
    key: Variable | None = None,
    reverse: Variable | None = None,
) -> Variable:
    items = list(sized_elements(frame, iterable))
    sort_items(frame, items, key, reverse)
    return SequenceVariable(items, list)


@builtin(min)
def min_(frame: Frame, *values: Variable, **options: Variable) -> Variable:
    return _extreme(frame, min, values, options)


@builtin(max)
def max_(frame: Frame, *values: Variable, **options: Variable) -> Variable:
    return _extreme(frame, max, values, options)


def _extreme(
    frame: Frame, function: Any, values: tuple[Variable, ...], options: dict[str, Variable]
) -> Variable:
    has_default = len(values) > 1 and "default" in options
    if not values or has_default or not options.keys() <= {"key", "default"}:
        refuse_call(function, values, options)
    items = _each(frame, values[0]) if len(values) == 1 else iter(values)
    default, key = options.pop("default", None), options.pop("key", None)
    ranker = None if key is None or is_none(key) else key
    wins = operator.lt if function is min else operator.gt
    best = next(items, None)
    if best is None:
        if default is None:
            new = sys.version_info >= (3, 12)
            text = "iterable argument is empty" if new else "arg is an empty sequence"
            fails(ValueError, f"{function.__name__}() {text}")
        return default
    best_rank = _rank(frame, ranker, best)
    for item in items:
        rank = _rank(frame, ranker, item)
        if truth(frame, apply(frame, wins, [rank, best_rank])):
            best, best_rank = item, rank
    return best


def _each(frame: Frame, values: Variable) -> Iterator[Variable]:
    """The elements of an iterable, each when it is asked for: what is done with one may end it."""
    if isinstance(values, TensorVariable):
        return elements(frame, values)
    return elements(frame, iterate(frame, values))


def _rank(frame: Frame, key: Variable | None, item: Variable) -> Variable:
    return item if key is None else _call(frame, key, [item])
