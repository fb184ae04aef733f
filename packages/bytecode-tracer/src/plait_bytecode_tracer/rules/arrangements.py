"""Orders and choices of `itertools`: all elements are read at once, the order is Python's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.indices import as_index
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.rules.itertools_ import check_arguments, tuple_of
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.variables import IteratorVariable, Remake, Variable, is_none


@builtin(itertools.product)
def product(frame: Frame, *iterables: Variable, repeat: Variable | None = None) -> Variable:
    times = 1 if repeat is None else as_index(frame, repeat)
    pools = [list(elements(frame, values)) for values in iterables]
    check_arguments(itertools.product, repeat=times)
    orders = itertools.product(*[range(len(pool)) for pool in pools], repeat=times)
    wide = pools * max(times, 0)

    def pick(places: tuple[int, ...]) -> Variable:
        return tuple_of([pool[place] for pool, place in zip(wide, places, strict=True)])

    given: list[Variable] = [tuple_of(pool) for pool in pools]
    return _arranged(orders, pick, itertools.product, given, {"repeat": constant(times)})


def _choices(frame: Frame, kind: Any, iterable: Variable, size: Variable | None) -> Variable:
    pool = list(elements(frame, iterable))
    length = None if size is None else as_index(frame, size)
    if length is not None:
        check_arguments(kind, (), length)
    orders = kind(range(len(pool)), *([] if length is None else [length]))
    given = [tuple_of(pool), *([] if length is None else [constant(length)])]
    return _arranged(orders, lambda places: tuple_of([pool[p] for p in places]), kind, given, {})


def _arranged(
    orders: Iterator[tuple[int, ...]],
    pick: Callable[[tuple[int, ...]], Variable],
    kind: type,
    given: list[Variable],
    options: dict[str, Variable],
) -> IteratorVariable:
    """An iterator over arrangements of elements, given as arrangements of their places."""
    taken = 0

    def step() -> Variable | None:
        nonlocal taken
        places = next(orders, None)
        if places is None:
            return None
        taken += 1
        return pick(places)

    return IteratorVariable(step, kind, lambda: Remake(kind, given, options, skipped=taken))


@builtin(itertools.permutations)
def permutations(frame: Frame, iterable: Variable, r: Variable | None = None) -> Variable:
    size = None if r is None or is_none(r) else r
    if size is not None and not issubclass(type_of(size), int):
        list(elements(frame, iterable))  # it is read before
        fails(TypeError, "Expected int as r")
    return _choices(frame, itertools.permutations, iterable, size)


@builtin(itertools.combinations)
def combinations(frame: Frame, iterable: Variable, r: Variable) -> Variable:
    return _choices(frame, itertools.combinations, iterable, r)


@builtin(itertools.combinations_with_replacement)
def combinations_with_replacement(frame: Frame, iterable: Variable, r: Variable) -> Variable:
    return _choices(frame, itertools.combinations_with_replacement, iterable, r)
