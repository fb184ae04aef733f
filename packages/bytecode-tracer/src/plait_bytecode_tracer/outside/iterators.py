"""Iterators that the caller made: read through `__reduce__`, and moved on after the graph."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.outside.draws import drawing
from plait_bytecode_tracer.values.numpy_objects import is_array
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    IteratorVariable,
    Known,
    Remake,
    SequenceVariable,
    SetVariable,
    Variable,
)
from plait_utils import dataclass

_VIEWS: tuple[Any, ...] = ({}.keys(), {}.values(), {}.items())
_SEQUENCES: tuple[Any, ...] = ([], (), "", "\xe9", b"", range(0), range(2**70))
_POSITIONED = frozenset(
    {
        *map(type, map(iter, _SEQUENCES)),
        *(type(reversed([])), type(reversed(()))),
    }
)
"""Classes whose instances tell what they iterate over and where they stand."""
_COPIED = frozenset({*map(type, map(iter, _VIEWS)), *map(type, map(reversed, _VIEWS)),
                     type(iter(set()))})  # fmt: skip
"""Classes whose instances tell what they have still to give."""
_OVER_OTHERS = frozenset({enumerate, zip, map, filter})
"""Classes whose instances tell the iterators below them."""


_FAR = 1 << 62
"""From here on a counter's numbers are none that a graph computes with."""
_COUNT = re.compile(r"count\((-?\d+)\)")
"""A counter by ones, as it displays itself; Python 3.12 warns of asking it in another way."""


class _Indexed:
    def __getitem__(self, position: int) -> int:
        """Only the class of its iterator is of interest."""
        raise IndexError


_SEQUENCE_ITERATOR = type(iter(_Indexed()))


def _goes_over_rows(iterator: Any) -> bool:
    """Whether an iterator goes over the rows of an array, which are views of it."""
    over = iterator.__reduce__()[1][0]
    return is_array(over) and over.ndim > 1


def outside_iterator(frame: Frame, value: Known) -> IteratorVariable | None:
    """An iterator of the caller as one of the trace; None if it cannot be looked into."""
    real, source = value.value, value.source
    kind = type(real)
    if kind is itertools.count and source is not None:
        return _counter(frame, value, source)
    over_rows = kind is _SEQUENCE_ITERATOR and _goes_over_rows(real)
    if source is None or (kind not in _POSITIONED | _COPIED | _OVER_OTHERS and not over_rows):
        return None
    known = frame.state.world.storages.get(id(real))
    if isinstance(known, IteratorVariable):
        return known
    parts = real.__reduce__()
    if over_rows or kind in _COPIED or (kind in _POSITIONED and parts[0] is iter):
        made = _replayed(frame, value, _from_here(frame, value, source), kind)
        frame.state.world.storages[id(real)] = made
        return made
    reduced = Source(f"{source.code}.__reduce__()", f"what {source.text} iterates over", source)
    arguments = reduced.item("1", "")
    if kind in _POSITIONED:
        inner = _positioned(frame, parts, reduced, arguments)
    else:
        inner = _over_others(frame, kind, parts, reduced, arguments)
    made = _replayed(frame, value, inner, kind)
    frame.state.world.storages[id(real)] = made
    return made


def _positioned(
    frame: Frame, parts: tuple[Any, ...], reduced: Source, arguments: Source
) -> IteratorVariable:
    from plait_bytecode_tracer.rules.iterators import reversed_

    position = parts[2] if len(parts) > 2 else None
    text = f"{reduced.text}, from position {position}"
    where = frame.state.constants.name(parts[2:])
    function = frame.state.constants.name(parts[0])
    frame.state.guard(reduced, f"{{}}[0] is {function} and {{}}[2:] == {where}", text)
    values = frame.state.wrap(parts[1][0], arguments.item("0", ""))
    inner = _as_iterator(reversed_(frame, values))
    held = values.items if isinstance(values, SequenceVariable) else parts[1][0]
    if position is not None and position >= len(held):
        raise TraceBreakError("GB0009", "a reversed iterator over what has become shorter")
    for _ in range(len(held) - 1 - position if position is not None else 0):
        inner.next_()
    return inner


def ahead(iterator: Any, count: int) -> Any:
    """The element that an iterator gives after so many others. Raises IndexError at its end."""
    values, position = _standing(iterator)
    return values[position + count]


def left(iterator: Any) -> int:
    """How many elements an iterator has still to give."""
    values, position = _standing(iterator)
    return max(0, len(values) - position)


def _standing(iterator: Any) -> tuple[Any, int]:
    """What an iterator goes over, and where it stands."""
    parts = iterator.__reduce__()
    return parts[1][0], (parts[2] if len(parts) > 2 else 0) or 0


def _from_here(frame: Frame, value: Known, source: Source) -> IteratorVariable:
    """What an iterator gives from where it stands, wherever that is.

    So what follows a break in a loop is the same for each iteration.
    """
    state, real = frame.state, value.value
    peek, count_left = state.constants.name(ahead), state.constants.name(left)
    over = real.__reduce__()[1][0]
    is_copy = type(real) in _COPIED
    remaining = left(real)
    count = 0

    def is_changed() -> bool:
        changed = state.world.changed.values()
        if is_copy:
            return any(isinstance(other, DictVariable | SetVariable) for other in changed)
        known = state.world.wrapped.get(id(over))
        return known is not None and any(other is known for other in changed)

    def step() -> Variable | None:
        nonlocal count
        if is_changed():
            raise TraceBreakError("GB0009", "an iterator over a container that may have changed")
        if count >= remaining:
            text = f"{source.text} has {remaining} elements left"
            state.guard(source, f"{count_left}({{}}) == {remaining}", text)
            return None
        count += 1
        text = f"element {count} of those that {source.text} has left"
        place = Source(f"{peek}({source.code}, {count - 1})", text, source)
        return state.wrap(ahead(real, count - 1), place)

    def again() -> Remake:
        if is_changed():
            raise TraceBreakError("GB0009", "an iterator over a container that changed")
        return Remake(None, [value])

    return IteratorVariable(step, type(real), again, None)


def upcoming(counter: Any) -> tuple[int]:
    """The number that a counter gives next. Raises TypeError for one by other steps."""
    found = _COUNT.fullmatch(repr(counter))
    if found is None:
        raise TypeError("a counter by other steps")
    return (int(found[1]),)


def _counter(frame: Frame, value: Known, source: Source) -> IteratorVariable | None:
    """A counter from where it stands: its next number is an input, as one that is drawn."""
    from plait_bytecode_tracer.objects.operations import apply

    state, real = frame.state, value.value
    known = state.world.storages.get(id(real))
    if isinstance(known, IteratorVariable):
        return known
    if _COUNT.fullmatch(repr(real)) is None or state.policy.dynamic is False:
        return None
    (start,) = upcoming(real)
    if abs(start) >= _FAR:
        return None
    code = f"{state.constants.name(upcoming)}({source.code})"
    first = state.need_symbols().drawn(start, drawing(code, source).element(0, "0"))
    count = 0

    def step() -> Variable:
        nonlocal count
        count += 1
        return apply(frame, operator.add, [first, constant(count - 1)]) if count > 1 else first

    inner = IteratorVariable(step, itertools.count, lambda: Remake(None, [value]))
    made = _replayed(frame, value, inner, itertools.count)
    state.world.storages[id(real)] = made
    return made


def _as_iterator(made: Variable) -> IteratorVariable:
    if not isinstance(made, IteratorVariable):
        raise TraceBreakError("GB0009", "an iterator that its object makes")
    return made


def _over_others(
    frame: Frame, kind: Any, parts: tuple[Any, ...], reduced: Source, arguments: Source
) -> IteratorVariable:
    from plait_bytecode_tracer.rules.iterators import enumerate_, filter_, map_, zip_

    values = frame.state.wrap(parts[1], arguments)
    text = f"{reduced.text}, {'strictly' if len(parts) > 2 else 'as it is'}"
    frame.state.guard(reduced, f"{{}}[2:] == {parts[2:]!r}", text)
    assert isinstance(values, SequenceVariable)
    rules: dict[Any, Callable[..., Variable]] = {
        enumerate: enumerate_,
        zip: zip_,
        map: map_,
        filter: filter_,
    }
    strict = {"strict": constant(True)} if len(parts) > 2 else {}
    return _as_iterator(rules[kind](frame, *values.items, **strict))


@dataclass(slots=True)
class _Taken:
    """How far the trace has read an iterator of the caller's."""

    count: int = 0
    by_others: int = 0
    """How many of these are taken where an `enumerate` over it is moved."""
    ended: bool = False


def _replayed(frame: Frame, value: Known, inner: IteratorVariable, kind: type) -> IteratorVariable:
    """What is taken in the trace is taken from the caller's iterator after the graph."""
    taken = frame.state.world.taken.setdefault(id(value.value), _Taken())
    below = value.value.__reduce__()[1][0] if kind is enumerate else None

    def step() -> Variable | None:
        frame.state.world.changed[id(made)] = made
        found = inner.next_()
        taken.ended = found is None
        taken.count += not taken.ended
        if below is not None and found is not None:
            frame.state.world.taken[id(below)].by_others += 1
        return found

    def replay() -> Remake:
        if kind in (zip, map, filter):  # those below are moved, and nothing else is to be
            return Remake(None, [value])
        if below is not None and type(below) not in _POSITIONED:
            raise TraceBreakError("GB0009", "an iterator that counts the elements of another")
        if inner.again is not None:
            inner.again()  # it says if there is no such place
        return Remake(None, [value], skipped=-1 if taken.ended else taken.count - taken.by_others)

    made = IteratorVariable(step, kind, lambda: Remake(None, [value]), inner.remaining, replay)
    return made
