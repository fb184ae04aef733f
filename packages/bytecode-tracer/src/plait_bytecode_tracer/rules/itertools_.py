"""The iterators of `itertools`: lazy, and made again half-consumed where they escape.

Each follows the state that CPython's own holds, so that the iterators below it are read as
far as Python reads them. `again` says how the same state is reached with what the module
offers: a chain of what was held back and what is left, for example.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.indices import as_index, plain_index
from plait_bytecode_tracer.objects.iteration import elements, iterate
from plait_bytecode_tracer.objects.operations import _call, apply, truth
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.values.iterators import over
from plait_bytecode_tracer.values.variables import (
    IteratorVariable,
    Known,
    Remake,
    SequenceVariable,
    Variable,
    is_none,
)


def tuple_of(items: list[Variable]) -> SequenceVariable:
    return SequenceVariable(items, tuple)


def after(items: list[Variable], source: IteratorVariable) -> IteratorVariable:
    """An iterator that gives what was held back, then the rest."""
    return _chained([over(items), source]) if items else source


@builtin(itertools.chain)
def chain(frame: Frame, *values: Variable) -> Variable:
    return _chain(frame, iterate(frame, tuple_of(list(values))))


@builtin(itertools.chain.from_iterable)
def from_iterable(frame: Frame, iterable: Variable, /) -> Variable:
    return _chain(frame, iterate(frame, iterable))


def _chain(frame: Frame, sources: IteratorVariable) -> IteratorVariable:
    active: IteratorVariable | None = None
    ended = False

    def step() -> Variable | None:
        nonlocal active, ended
        while not ended:
            if active is None:
                following = sources.next_()
                if following is None:
                    ended = True
                    return None
                ended = True  # also where it cannot be iterated over
                active = iterate(frame, following)
                ended = False
            item = active.next_()
            if item is not None:
                return item
            active = None
        return None

    def again() -> Remake:
        if ended:
            return Remake(itertools.chain, [])
        rest = sources if active is None else _chained([over([active]), sources])
        return Remake(itertools.chain.from_iterable, [rest])

    return IteratorVariable(step, itertools.chain, again)


def _chained(parts: list[IteratorVariable]) -> IteratorVariable:
    """A chain for the code after the graph only."""
    return IteratorVariable(
        lambda: None, itertools.chain, lambda: Remake(itertools.chain, [*parts])
    )


@builtin(itertools.islice)
def islice(frame: Frame, iterable: Variable, *bounds: Variable) -> Variable:
    values = [plain_index(frame, bound) for bound in bounds]
    check_arguments(itertools.islice, (), *values)
    source = iterate(frame, iterable)
    start, stop, stride = _bounds(values)
    count, following, ended = 0, start, False

    def step() -> Variable | None:
        nonlocal count, following, ended
        item: Variable | None = None
        while not ended and count <= following:
            ended = stop is not None and count == following and count >= stop
            if not ended:
                ended = True  # also where the next element raises
                item = source.next_()
                ended = item is None
            count += 1
        if ended:
            return None
        following += stride
        following = following if stop is None else min(following, stop)
        return item

    def again() -> Remake:
        if ended:
            return Remake(itertools.islice, [tuple_of([]), constant(0)])
        left = None if stop is None else max(0, stop - count)
        parts = [constant(following - count), constant(left), constant(stride)]
        return Remake(itertools.islice, [source, *parts])

    return IteratorVariable(step, itertools.islice, again)


def check_arguments(function: Any, *args: Any, **options: Any) -> None:
    """Raise in the program what Python raises for such arguments. The call has no effect."""
    try:
        function(*args, **options)
    except (TypeError, ValueError, OverflowError) as error:
        raise python_error(error) from error


def _bounds(values: list[Any]) -> tuple[int, int | None, int]:
    """Start, stop and step of a slice of an iterator."""
    given = slice(*values)
    return given.start or 0, given.stop, 1 if given.step is None else given.step


@builtin(itertools.count)
def count(frame: Frame, start: Variable | None = None, step: Variable | None = None) -> Variable:
    value = constant(0) if start is None else start
    stride = constant(1) if step is None else step
    if isinstance(value, Known) and isinstance(stride, Known):
        check_arguments(itertools.count, value.value, stride.value)
        if isinstance(value.value, int) and isinstance(stride.value, int) and stride.value == 1:
            value = constant(int(value.value))  # it counts in C then

    def following() -> Variable:
        nonlocal value
        found = value
        value = apply(frame, operator.add, [value, stride])
        return found

    return IteratorVariable(
        following, itertools.count, lambda: Remake(itertools.count, [value, stride])
    )


@builtin(itertools.repeat)
def repeat(frame: Frame, object: Variable, times: Variable | None = None) -> Variable:
    left = None if times is None else max(0, as_index(frame, times))

    def step() -> Variable | None:
        nonlocal left
        if left is None:
            return object
        left -= 1
        if left < 0:
            left = 0
            return None
        return object

    def again() -> Remake:
        return Remake(itertools.repeat, [object, *([] if left is None else [constant(left)])])

    def remaining() -> int:
        return left or 0

    return IteratorVariable(step, itertools.repeat, again, None if left is None else remaining)


@builtin(itertools.cycle)
def cycle(frame: Frame, iterable: Variable, /) -> Variable:
    source = iterate(frame, iterable)
    saved: list[Variable] = []
    position: int | None = None

    def step() -> Variable | None:
        nonlocal position
        if position is None:
            item = source.next_()
            if item is not None:
                saved.append(item)
                return item
            position = 0
        if not saved:
            return None
        position = (position + 1) % len(saved)
        return saved[position - 1]

    def again() -> Remake:
        if position is None:
            return Remake(itertools.cycle, [after(saved, source)], skipped=len(saved))
        return Remake(itertools.cycle, [tuple_of(saved)], skipped=position)

    return IteratorVariable(step, itertools.cycle, again)


@builtin(itertools.accumulate)
def accumulate(
    frame: Frame,
    iterable: Variable,
    func: Variable | None = None,
    *,
    initial: Variable | None = None,
) -> Variable:
    source = iterate(frame, iterable)
    total: Variable | None = None
    start = None if is_none(initial) else initial

    def step() -> Variable | None:
        nonlocal total, start
        if start is not None:
            total, start = start, None
            return total
        item = source.next_()
        if item is None:
            return None
        if total is None:
            total = item
        elif func is None or is_none(func):
            total = apply(frame, operator.add, [total, item])
        else:
            total = _call(frame, func, [total, item])
        return total

    def again() -> Remake:
        function = constant(None) if func is None else func
        before = total if start is None else start
        options = {} if before is None else {"initial": before}
        if isinstance(before, Known) and before.value is None:
            raise TraceBreakError("GB0009", "an accumulation that stands at None")
        return Remake(itertools.accumulate, [source, function], options, skipped=total is not None)

    return IteratorVariable(step, itertools.accumulate, again)


@builtin(itertools.starmap)
def starmap(frame: Frame, function: Variable, iterable: Variable, /) -> Variable:
    source = iterate(frame, iterable)

    def step() -> Variable | None:
        item = source.next_()
        return None if item is None else _call(frame, function, list(elements(frame, item)))

    return IteratorVariable(
        step, itertools.starmap, lambda: Remake(itertools.starmap, [function, source])
    )


@builtin(itertools.takewhile)
def takewhile(frame: Frame, predicate: Variable, iterable: Variable, /) -> Variable:
    source = iterate(frame, iterable)
    ended = False

    def step() -> Variable | None:
        nonlocal ended
        item = None if ended else source.next_()
        if item is None or truth(frame, _call(frame, predicate, [item])):
            return item
        ended = True
        return None

    def again() -> Remake:
        return Remake(itertools.takewhile, [predicate, tuple_of([]) if ended else source])

    return IteratorVariable(step, itertools.takewhile, again)


@builtin(itertools.dropwhile)
def dropwhile(frame: Frame, predicate: Variable, iterable: Variable, /) -> Variable:
    source = iterate(frame, iterable)
    started = False

    def step() -> Variable | None:
        nonlocal started
        while (item := source.next_()) is not None:
            if started or not truth(frame, _call(frame, predicate, [item])):
                started = True
                return item
        return None

    def again() -> Remake:
        chosen = constant(_never) if started else predicate
        return Remake(itertools.dropwhile, [chosen, source])

    return IteratorVariable(step, itertools.dropwhile, again)


def _never(value: object) -> bool:
    """The predicate of a `dropwhile` that has dropped all it will."""
    return False


@builtin(itertools.filterfalse)
def filterfalse(frame: Frame, predicate: Variable, iterable: Variable, /) -> Variable:
    source = iterate(frame, iterable)
    plain = isinstance(predicate, Known) and (predicate.value is None or predicate.value is bool)

    def step() -> Variable | None:
        while (item := source.next_()) is not None:
            if not truth(frame, item if plain else _call(frame, predicate, [item])):
                return item
        return None

    return IteratorVariable(
        step, itertools.filterfalse, lambda: Remake(itertools.filterfalse, [predicate, source])
    )


@builtin(itertools.compress)
def compress(frame: Frame, data: Variable, selectors: Variable) -> Variable:
    source, chosen = iterate(frame, data), iterate(frame, selectors)

    def step() -> Variable | None:
        while (item := source.next_()) is not None:
            selector = chosen.next_()
            if selector is None:
                return None
            if truth(frame, selector):
                return item
        return None

    return IteratorVariable(
        step, itertools.compress, lambda: Remake(itertools.compress, [source, chosen])
    )


@builtin(itertools.pairwise)
def pairwise(frame: Frame, iterable: Variable, /) -> Variable:
    source = iterate(frame, iterable)
    previous: Variable | None = None
    ended = False

    def take() -> Variable | None:
        nonlocal previous, ended
        item: Variable | None = None
        try:
            item = source.next_()
        finally:
            if item is None:
                previous, ended = None, True
        return item

    def step() -> Variable | None:
        nonlocal previous
        if ended:
            return None
        held = previous
        if held is None:  # what is read may read from this
            held = previous = take()
            if held is None or ended:
                previous = None
                return None
        item = take()
        if item is None:
            return None
        previous = item
        return tuple_of([held, item])

    def again() -> Remake:
        if ended:
            return Remake(itertools.pairwise, [tuple_of([])])
        return Remake(itertools.pairwise, [after([previous] if previous else [], source)])

    return IteratorVariable(step, itertools.pairwise, again)


@builtin(itertools.zip_longest)
def zip_longest(frame: Frame, *iterables: Variable, fillvalue: Variable | None = None) -> Variable:
    sources: list[IteratorVariable | None] = [iterate(frame, value) for value in iterables]
    filler = constant(None) if fillvalue is None else fillvalue
    active = len(sources)

    def step() -> Variable | None:
        nonlocal active
        items: list[Variable] = []
        if not active:
            return None
        for place, source in enumerate(sources):
            item = None if source is None else source.next_()
            if item is None:
                if source is not None:
                    active -= 1
                    if not active:
                        return None
                    sources[place] = None
                item = filler
            items.append(item)
        return tuple_of(items)

    def again() -> Remake:
        left: list[Variable] = [tuple_of([]) if not active or s is None else s for s in sources]
        return Remake(itertools.zip_longest, left, {"fillvalue": filler})

    return IteratorVariable(step, itertools.zip_longest, again)


def batched(
    frame: Frame, iterable: Variable, n: Variable, *, strict: Variable | None = None
) -> Variable:
    size, is_strict = as_index(frame, n), strict is not None and truth(frame, strict)
    check_arguments(_BATCHED, (), size)
    source = iterate(frame, iterable)
    ended = False

    def step() -> Variable | None:
        nonlocal ended
        items: list[Variable] = []
        while not ended and len(items) < size:
            item = source.next_()
            ended = item is None
            items += [] if item is None else [item]
        if is_strict and 0 < len(items) < size:
            fails(ValueError, "batched(): incomplete batch")
        return tuple_of(items) if items else None

    options: dict[str, Variable] = {"strict": constant(True)} if is_strict else {}
    given = [source, constant(size)]
    return IteratorVariable(step, _BATCHED, lambda: Remake(_BATCHED, given, options))


_BATCHED: Any = getattr(itertools, "batched", None)
if _BATCHED is not None:  # from 3.12
    builtin(_BATCHED)(batched)
