"""`itertools.tee`: iterators that share what not all of them have read."""

from __future__ import annotations

import itertools
import operator

from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.attributes import find_attribute
from plait_bytecode_tracer.objects.indices import as_index
from plait_bytecode_tracer.objects.iteration import iterate, iterator_of
from plait_bytecode_tracer.objects.operations import _call
from plait_bytecode_tracer.rules.itertools_ import after
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.values.variables import (
    IteratorVariable,
    Remake,
    SequenceVariable,
    Variable,
)

_TEE: type = type(itertools.tee(())[0])


@builtin(itertools.tee)
def tee(frame: Frame, iterable: Variable, n: Variable | None = None, /) -> Variable:
    """An iterator that can be copied is the first of the results itself."""
    number = 2 if n is None else as_index(frame, n)
    try:
        itertools.tee((), number)
    except (ValueError, OverflowError) as error:
        raise python_error(error) from error
    if number == 0:
        return SequenceVariable([], tuple)
    source = iterator_of(frame, iterable)
    copies = _own_copies(frame, source, number - 1)
    if copies is not None:
        return SequenceVariable([source, *copies], tuple)
    shared = _Shared(iterate(frame, source))
    return SequenceVariable([shared.reader(0) for _ in range(number)], tuple)


def _own_copies(frame: Frame, source: Variable, count: int) -> list[Variable] | None:
    """Copies of an iterator by its own `__copy__`; None if it has none."""
    if isinstance(source, IteratorVariable):
        return None if source.copied is None else [source.copied() for _ in range(count)]
    method = find_attribute(frame, source, "__copy__")
    return None if method is None else [_call(frame, method, []) for _ in range(count)]


class _Shared:
    """What the iterators of one `tee`, and copies of these, share."""

    def __init__(self, source: IteratorVariable) -> None:
        self.source = source
        self.read: list[Variable] = []
        """All that has been read of the source."""
        self.positions: list[int] = []
        self.made: Variable | None = None
        self.running = False
        """Whether an element is being read, which may not read from these iterators."""

    def reader(self, position: int) -> IteratorVariable:
        place = len(self.positions)
        self.positions.append(position)

        def step() -> Variable | None:
            position = self.positions[place]
            if position == len(self.read):
                if self.running:
                    fails(RuntimeError, "cannot re-enter the tee iterator")
                self.running = True
                try:
                    item = self.source.next_()
                finally:
                    self.running = False
                if item is None:
                    return None
                self.read.append(item)
            self.positions[place] += 1
            return self.read[position]

        def copied() -> IteratorVariable:
            return self.reader(self.positions[place])

        return IteratorVariable(step, _TEE, lambda: self.again(place), copied=copied)

    def again(self, place: int) -> Remake:
        first = min(self.positions)
        if self.made is None:
            ahead = IteratorVariable(lambda: None, tuple, lambda: self._together(first))
            self.made = ahead
        skipped = self.positions[place] - first
        return Remake(operator.getitem, [self.made, constant(place)], skipped=skipped)

    def _together(self, first: int) -> Remake:
        rest = after(self.read[first:], self.source)
        return Remake(itertools.tee, [rest, constant(len(self.positions))])
