"""Lists, tuples and deques of the caller whose length differs from call to call.

A loop over a graph break may add to a list in each round, or take from it. What follows the break
knows of such a list no more than its ends, as far as they were read or changed:

    front, then the caller's elements from `first` up to `last` from the end, then back

For all else the number of elements is guarded first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from plait_bytecode_tracer.values.lazy import LazyList, Unread, Wrap
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import DequeItems, SequenceVariable, Variable
from plait_utils import dataclass


@dataclass(eq=False, slots=True)
class Whole:
    """What the caller holds."""

    source: Source
    size: int
    """In the call that is traced."""
    wrap: Wrap
    """Wraps the element at a position; negative ones count from the end."""
    close: Callable[[], None]
    """Guards how many elements there are."""
    reach: Callable[[int], None]
    """Guards that there are so many at least."""
    count: Callable[[int], Variable]
    """How many elements there are, and some more, as a number that differs from call to call."""


class OpenList(LazyList):
    """The elements of such a list; as a real list it is empty until it is settled."""

    __slots__ = ("_originals", "back", "first", "front", "is_open", "last", "whole")

    def __init__(self, whole: Whole) -> None:
        super().__init__(0, whole.wrap)
        self.whole = whole
        self.is_open = True
        self.front: list[Variable] = []
        self.back: list[Variable] = []
        self.first = 0
        """How many of the caller's elements, from the first on, are in front or gone."""
        self.last = 0
        """How many of the caller's elements, from the last on, are in back or gone."""
        self._originals: dict[int, Variable] = {}
        """What stood for the caller's elements, by position."""

    # What is known.

    def settle(self) -> None:
        """Guard the number of elements; from now on it is as any lazy list."""
        if self.is_open:
            self.whole.close()
            self.is_open = False
            between = [Unread(n) for n in range(self.first, self.whole.size - self.last)]
            list.__setitem__(self, slice(0, 0), [*self.front, *between, *self.back])

    def held(self) -> list[Variable]:
        """What is known to be in a list that is still open, some of it unread."""
        return [*self.front, *self.back]

    def taken(self) -> tuple[int, int]:
        """How far the ends are known."""
        return self.first, self.last

    def length(self) -> Variable:
        """The number of elements of a list that is still open."""
        return self.whole.count(len(self.front) + len(self.back) - self.first - self.last)

    def __bool__(self) -> bool:
        if not self.is_open:
            return list.__len__(self) > 0
        if self.front or self.back:
            return True
        if self._is_used_up():
            self.settle()
            return False
        self.whole.reach(self.first + self.last + 1)
        return True

    def _is_used_up(self) -> bool:
        return self.first + self.last >= self.whole.size

    def _place(self, index: int) -> tuple[list[Variable], int] | None:
        """The end in which an element stands, and where; None for what is not there."""
        if index >= 0:
            while len(self.front) <= index:
                if self._is_used_up():
                    return None
                self.whole.reach(self.first + self.last + 1)
                self._originals[self.first] = Unread(self.first)
                self.front.append(self._originals[self.first])
                self.first += 1
            return self.front, index
        while len(self.back) < -index:
            if self._is_used_up():
                return None
            self.whole.reach(self.first + self.last + 1)
            self.last += 1
            self._originals[-self.last] = Unread(-self.last)
            self.back.insert(0, self._originals[-self.last])
        return self.back, len(self.back) + index

    def _read_part(self, part: list[Variable], place: int) -> Variable:
        found = part[place]
        if isinstance(found, Unread):
            position = found.position
            found = part[place] = self.whole.wrap(position)
            self._originals[position] = found
        return found

    # What it does as a list.

    def __getitem__(self, index: Any) -> Any:
        if self.is_open and type(index) is int:
            found = self._place(index)
            if found is not None:
                return self._read_part(*found)
        if self.is_open and type(index) is slice:
            cut = self._cut(index)
            if cut is not None:
                return cut
        self.settle()
        return super().__getitem__(index)

    def _cut(self, index: slice) -> list[Variable] | None:
        """Some elements of one end, or all but some of the ends; None for others."""
        start, stop, step = index.start, index.stop, index.step
        if step not in (None, 1):
            return None
        if (start is None or start >= 0) and (stop is None or stop < 0):
            return self._without(start or 0, -(stop or 0))
        if type(start) is int and start < 0 and stop is None and self._place(start):
            return [self._read_part(self.back, n + len(self.back)) for n in range(start, 0)]
        if start in (None, 0) and type(stop) is int and stop > 0 and self._place(stop - 1):
            return [self._read_part(self.front, n) for n in range(stop)]
        return None

    def _without(self, first: int, last: int) -> list[Variable] | None:
        """All elements but some of the ends; None where there are not so many."""
        if (first and not self._place(first - 1)) or (last and not self._place(-last)):
            return None
        made = self.beside((), ())
        del made.front[:first], made.back[len(made.back) - last :]
        return made

    def __setitem__(self, index: Any, value: Any) -> None:
        found = self._place(index) if self.is_open and type(index) is int else None
        if found is None:
            self.settle()
            super().__setitem__(index, value)
        else:
            found[0][found[1]] = value

    def __delitem__(self, index: Any) -> None:
        found = self._place(index) if self.is_open and type(index) is int else None
        if found is None:
            self.settle()
            super().__delitem__(index)
        else:
            del found[0][found[1]]

    def pop(self, index: Any = -1) -> Variable:
        place = self._place(index) if self.is_open and type(index) is int else None
        if place is None:
            self.settle()
            return super().pop(index)
        found = self._read_part(*place)
        del place[0][place[1]]
        return found

    def insert(self, index: Any, value: Variable) -> None:
        found = self._place(index) if self.is_open and type(index) is int else None
        if self.is_open and type(index) is int and index == 0:
            self.front.insert(0, value)
        elif found is None:
            self.settle()
            super().insert(index, value)
        else:
            found[0].insert(found[1], value)

    def append(self, value: Variable) -> None:
        if self.is_open:
            self.back.append(value)
        else:
            super().append(value)

    def extend(self, values: Iterable[Variable]) -> None:
        for value in values:
            self.append(value)

    # Others of it.

    def beside(self, before: Iterable[Variable], after: Iterable[Variable]) -> OpenList:
        """The elements of an open list between others, as those of a new one."""
        made = OpenList(self.whole)
        made.front, made.back = [*before, *self.front], [*self.back, *after]
        made.first, made.last = self.first, self.last
        return made

    def changes(self) -> tuple[tuple[int, list[Variable]], tuple[int, list[Variable]]]:
        """For each end, how many of the caller's elements are replaced, and by what."""
        front, first = [*self.front], self.first
        while first and front and front[-1] is self._originals.get(first - 1):
            front.pop()
            first -= 1
        back, last = [*self.back], self.last
        while last and back and back[0] is self._originals.get(-last):
            back.pop(0)
            last -= 1
        return (first, [*map(self._value, front)]), (last, [*map(self._value, back)])

    def ends(self) -> tuple[list[Variable], list[Variable]]:
        """What stands before and behind what is not known."""
        return [*map(self._value, self.front)], [*map(self._value, self.back)]

    def _value(self, element: Variable) -> Variable:
        return self.whole.wrap(element.position) if isinstance(element, Unread) else element


def _settled(name: str) -> Callable[..., Any]:
    function = getattr(LazyList, name)

    def method(self: OpenList, *args: Any, **kwargs: Any) -> Any:
        self.settle()
        return function(self, *args, **kwargs)

    return method


for _name in (
    *("__add__", "__contains__", "__eq__", "__iadd__", "__imul__", "__iter__", "__len__"),
    *("__mul__", "__ne__", "__reversed__", "__rmul__", "_read", "clear", "copy", "count"),
    *("index", "remove", "reverse", "sort"),
):
    setattr(OpenList, _name, _settled(_name))


def open_of(items: object) -> OpenList | None:
    """The elements of a sequence, if their number differs from call to call and is not guarded."""
    return items if isinstance(items, OpenList) and items.is_open else None


def open_copy(values: Variable | None) -> list[Variable] | None:
    """The elements of an open list or tuple for a new one; None for all else."""
    found = open_of(values.items) if isinstance(values, SequenceVariable) else None
    return None if found is None or isinstance(values, DequeItems) else found.beside((), ())


def is_joined_open(left: Variable, right: Variable, *, in_place: bool) -> bool:
    """Whether two lists or tuples are to be joined, one of which is open: no other is asked."""
    if not (isinstance(left, SequenceVariable) and isinstance(right, SequenceVariable)):
        return False
    kinds = (left.kind, right.kind)
    fit = kinds in ((list, list), (tuple, tuple)) or (in_place and kinds == (list, tuple))
    return fit and any(open_of(value.items) is not None for value in (left, right))


def raw_items(items: list[Variable]) -> list[Variable]:
    """The elements of a list as they are, of which some may not have been read."""
    found = open_of(items)
    return [*list.__iter__(items)] if found is None else found.held()


def joined(left: list[Variable], right: list[Variable]) -> list[Variable]:
    """The elements of two lists, of which one may be open."""
    first, second = open_of(left), open_of(right)
    if first is not None:
        return first.beside((), right)
    return [*left, *right] if second is None else second.beside(left, ())
