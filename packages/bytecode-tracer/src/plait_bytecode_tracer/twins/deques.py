"""Python twins of `collections.deque` and its iterators, in terms of lists.

Written for tracing, not to be used: `twins.registry` says what each stands for.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

IS_TWIN = True
"""Frames of this module's code are never resumed: the real object has no such code."""


class deque:  # the name of the original, which errors tell
    """`collections.deque`."""

    __slots__ = ("_active", "_changes", "_items", "_maxlen")
    __hash__ = None  # type: ignore[assignment]  # as of the original

    def __init__(self, iterable: Iterable[Any] = (), maxlen: Any = None) -> None:
        if maxlen is not None:
            if not isinstance(maxlen, int):
                raise TypeError("an integer is required")
            if maxlen < 0:
                raise ValueError("maxlen must be non-negative")
        self._maxlen = maxlen
        self._active = False
        self._items: list[Any] = []
        self._changes = 0
        self.extend(iterable)

    @property
    def maxlen(self) -> Any:
        return self._maxlen

    def append(self, item: Any, /) -> None:
        self._changes += 1
        self._items.append(item)
        if self._maxlen is not None and len(self._items) > self._maxlen:
            del self._items[0]

    def appendleft(self, item: Any, /) -> None:
        self._changes += 1
        self._items.insert(0, item)
        if self._maxlen is not None and len(self._items) > self._maxlen:
            del self._items[-1]

    def extend(self, iterable: Iterable[Any], /) -> None:
        for item in list(iterable) if iterable is self else iterable:
            self.append(item)

    def extendleft(self, iterable: Iterable[Any], /) -> None:
        for item in list(iterable) if iterable is self else iterable:
            self.appendleft(item)

    def pop(self) -> Any:
        if not self._items:
            raise IndexError("pop from an empty deque")
        self._changes += 1
        return self._items.pop()

    def popleft(self) -> Any:
        if not self._items:
            raise IndexError("pop from an empty deque")
        self._changes += 1
        return self._items.pop(0)

    def clear(self) -> None:
        if self._items:
            self._changes += 1
            self._items.clear()

    def rotate(self, n: Any = 1, /) -> None:
        steps = operator.index(n)
        if len(self._items) > 1:
            self._changes += 1
            cut = -steps % len(self._items)
            self._items[:] = self._items[cut:] + self._items[:cut]

    def reverse(self) -> None:
        self._items.reverse()

    def insert(self, index: Any, item: Any, /) -> None:
        place = operator.index(index)
        if self._maxlen is not None and len(self._items) >= self._maxlen:
            raise IndexError("deque already at its maximum size")
        self._changes += 1
        self._items.insert(place, item)

    def remove(self, value: Any, /) -> None:
        changes = self._changes
        for position, item in enumerate(list(self._items)):
            found = item is value or item == value
            if changes != self._changes:
                raise IndexError("deque mutated during remove().")
            if found:
                self._changes += 1
                del self._items[position]
                return
        raise ValueError(f"{value!r} is not in deque")

    def index(self, value: Any, start: Any = 0, stop: Any = None, /) -> int:
        size = len(self._items)
        start = max(start + size, 0) if start < 0 else start
        stop = size if stop is None else max(stop + size, 0) if stop < 0 else min(stop, size)
        changes = self._changes
        for position in range(start, stop):
            item = self._items[position]
            if item is value or item == value:
                return position
            if changes != self._changes:
                raise RuntimeError("deque mutated during iteration")
        raise ValueError(f"{value!r} is not in deque")

    def count(self, value: Any, /) -> int:
        changes, found = self._changes, 0
        for item in self._items:
            found += bool(item is value or item == value)
            if changes != self._changes:
                raise RuntimeError("deque mutated during iteration")
        return found

    def copy(self) -> deque:
        return deque(self._items, self._maxlen)

    __copy__ = copy

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, value: Any) -> bool:
        changes = self._changes
        for item in self._items:
            if item is value or item == value:
                return True
            if changes != self._changes:
                raise RuntimeError("deque mutated during iteration")
        return False

    def _place(self, index: Any) -> Any:
        if not hasattr(type(index), "__index__"):
            name = type(index).__name__
            raise TypeError(f"sequence index must be integer, not {name!r}")
        place, size = operator.index(index), len(self._items)
        if not -size <= place < size:
            raise IndexError("deque index out of range")
        return place

    def __getitem__(self, index: Any) -> Any:
        return self._items[self._place(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._items[self._place(index)] = value

    def __delitem__(self, index: Any) -> None:
        place = self._place(index)
        self._changes += 1
        del self._items[place]

    def __iter__(self) -> Iterator[Any]:
        return DequeIterator(self)

    def __reversed__(self) -> Iterator[Any]:
        return DequeReverseIterator(self)

    def __add__(self, other: Any) -> deque:
        if not isinstance(other, deque):
            name = type(other).__name__
            raise TypeError(f'can only concatenate deque (not "{name}") to deque')
        made = self.copy()
        made.extend(other)
        return made

    def __iadd__(self, other: Any) -> deque:
        self.extend(other)
        return self

    def __mul__(self, count: Any) -> deque:
        return deque(self._items * operator.index(count), self._maxlen)

    __rmul__ = __mul__

    def __imul__(self, count: Any) -> deque:
        times = operator.index(count)
        if not self._items or times == 1:
            return self
        self._changes += 1
        made = self._items * times
        if self._maxlen is not None and len(made) > self._maxlen:
            made = made[len(made) - self._maxlen :]
        self._items[:] = made
        return self

    def __eq__(self, other: Any) -> Any:
        return self._items == other._items if isinstance(other, deque) else NotImplemented

    def __ne__(self, other: Any) -> Any:
        return self._items != other._items if isinstance(other, deque) else NotImplemented

    def __lt__(self, other: Any) -> Any:
        return self._items < other._items if isinstance(other, deque) else NotImplemented

    def __le__(self, other: Any) -> Any:
        return self._items <= other._items if isinstance(other, deque) else NotImplemented

    def __gt__(self, other: Any) -> Any:
        return self._items > other._items if isinstance(other, deque) else NotImplemented

    def __ge__(self, other: Any) -> Any:
        return self._items >= other._items if isinstance(other, deque) else NotImplemented

    def __repr__(self) -> str:
        if self._active:
            return "[...]"
        self._active = True
        try:
            shown = repr(self._items)
        finally:
            self._active = False
        return (
            f"deque({shown})" if self._maxlen is None else f"deque({shown}, maxlen={self._maxlen})"
        )


class DequeIterator:
    """An iterator over a deque, which may not change meanwhile."""

    __slots__ = ("_changes", "_deque", "_left")

    def __init__(self, values: Any, index: Any = 0, /) -> None:
        if not isinstance(values, deque):
            name = type(values).__name__
            raise TypeError(f"argument 1 must be collections.deque, not {name}")
        self._deque = values
        self._changes = values._changes
        self._left = max(len(values._items) - index, 0)

    def __iter__(self) -> DequeIterator:
        return self

    def __next__(self) -> Any:
        self._require_unchanged()
        if self._left == 0:
            raise StopIteration
        self._left -= 1
        items = self._deque._items
        return items[len(items) - 1 - self._left]

    def _require_unchanged(self) -> None:
        if self._changes != self._deque._changes:
            self._left = 0
            raise RuntimeError("deque mutated during iteration")

    def __length_hint__(self) -> Any:
        return self._left


class DequeReverseIterator(DequeIterator):
    """An iterator from the end of a deque; once at its other end it asks for no changes."""

    __slots__ = ()

    def __next__(self) -> Any:
        if self._left == 0:
            raise StopIteration
        self._require_unchanged()
        self._left -= 1
        return self._deque._items[self._left]
