"""Mixtures of the same pairs as one, and rows of one summed over the heads that share them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from plait_ir_lowering import (
    Load,
    Local,
    Mixture,
    Value,
    Var,
    packed,
    place_name,
    product_name,
    rewrite,
)
from plait_scheduler.domains import Substitution, move, points
from plait_scheduler.mixture_matches import Match
from plait_scheduler.sizes import estimate

_MOST_FACTORS = 2
_BLOCK = 128
"""A kernel has a program for so many rows, or for fewer."""

_T = TypeVar("_T")


def merged(one: Match, other: Match) -> Match | None:
    """Two mixtures as one; None where they go over other pairs, or over too many products."""
    first, second = one.mixture, other.mixture
    if first.ranges != second.ranges or first.axis is not second.axis:
        return None
    factors = list(dict.fromkeys([*first.factors, *second.factors]))
    if len(factors) >= len(first.factors) + len(second.factors) or len(factors) > _MOST_FACTORS:
        return None
    split = len(first.values), len(second.values)
    weights = [
        _renumbered(mixture, [factors.index(pair) for pair in mixture.factors])
        for mixture in (first, second)
    ]
    places = first.parts[1]
    mixture = replace(
        first,
        factors=tuple(factors),
        values=(*first.values, *second.values),
        weights=packed([*_joined(weights, split), *places, *second.parts[1]]),
        sums=(*first.sums, *(_moved(place, len(places)) for place in second.sums)),
    )
    at = tuple(sorted((*one.places, *other.places)))
    buffers = tuple(_joined([one.buffers, other.buffers], split))
    pairs = tuple(dict.fromkeys([*one.pairs, *other.pairs]))
    return Match(at, buffers, mixture, pairs, (*one.shared, *other.shared))


def _joined(parts: Sequence[Sequence[_T]], split: tuple[int, int]) -> Iterator[_T]:
    """What belongs to the values of two mixtures, then what belongs to their sums."""
    for part, count in zip(parts, split, strict=True):
        yield from part[:count]
    for part, count in zip(parts, split, strict=True):
        yield from part[count:]


def _renumbered(mixture: Mixture, numbers: Sequence[int]) -> list[Value]:
    """The weights of a mixture over products of other numbers."""
    names = {product_name(old): product_name(new) for old, new in enumerate(numbers)}

    def leaf(part: Value) -> Value | None:
        return Local(names[part.name], part.dtype) if isinstance(part, Local) else None

    return [rewrite(weight, leaf, lambda expr: expr) for weight in mixture.parts[0]]


def _moved(place: Load | None, by: int) -> Load | None:
    """A place whose computed coordinates come behind so many others."""
    if place is None:
        return None
    stem = place_name(0).removesuffix("0")
    index = [
        Local(place_name(int(at.name.removeprefix(stem)) + by), at.dtype)
        if isinstance(at, Local)
        else at
        for at in place.index
    ]
    return Load(place.buffer, index, place.dtype)


def over_heads(match: Match, programs: int) -> Match | None:
    """A mixture that sums over heads what is summed over them afterwards; None where nothing is, or
    not all, or where fewer than so many programs would be left."""
    shared = [each for each in match.shared if each is not None]
    if not shared or len(shared) < len(match.buffers):
        return None
    mixture, (size, *others) = match.mixture, [each.group for each in shared]
    *batches, row = mixture.ranges
    head = next((var for var in reversed(batches) if var.expr.terms), None)
    if head is None or any(other != size for other in others) or not head.extent.is_constant:
        return None
    if head.extent.as_int() % size:
        return None
    fewer = Var(head.name, head.extent.as_int() // size)
    group = Var(f"{head.name}_group", size)
    ranges = tuple(fewer if var is head else var for var in mixture.ranges)
    if estimate(points(ranges[:-1])) * -(-estimate(row.extent) // _BLOCK) < programs:
        return None
    change: Substitution = {head: fewer.expr * size + group.expr}
    weights = rewrite(mixture.weights, lambda _: None, lambda expr: move(expr, change))
    places = tuple(sorted((*match.places, *(at for each in shared for at in each.places))))
    return Match(
        places,
        tuple(each.buffer for each in shared),
        replace(mixture, ranges=ranges, weights=weights, group=group),
        match.pairs,
    )
