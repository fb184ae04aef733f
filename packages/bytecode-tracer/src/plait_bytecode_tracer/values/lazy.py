"""Containers of the caller whose elements become tracked when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from plait_bytecode_tracer.values.variables import Variable

Wrap = Callable[[Any], Variable]
"""Wraps the element at a position or key."""
GuardKeys = Callable[[Any, bool | None], None]
"""Guards that a key is present or absent; with None instead of either, that all keys stay."""
_MISSING = object()


class LazyDict(dict[Any, Variable]):
    """Values of a real dict by key, each wrapped at its first use.

    A dict of the caller may hold thousands of objects of which the trace reads one, and
    everything wrapped is guarded.
    """

    __slots__ = ("_guard", "_original", "_whole", "_wrap")

    def __init__(self, keys: Iterable[Any], wrap: Wrap, guard: GuardKeys) -> None:
        table = dict.fromkeys(keys, _UNREAD)  # of a dict it takes the hashes as they are
        super().__init__(table)
        self._wrap = wrap
        self._guard = guard
        self._original = frozenset(table)
        self._whole = False

    def _read_all(self) -> None:
        if not self._whole:
            self._guard(None, None)
            self._whole = True

    def __contains__(self, key: Any) -> bool:
        if not self._whole:
            self._guard(key, key in self._original)
        return super().__contains__(key)

    def __len__(self) -> int:
        self._read_all()
        return super().__len__()

    def __bool__(self) -> bool:
        return len(self) > 0

    def __getitem__(self, key: Any) -> Variable:
        if key not in self:
            raise KeyError(key)
        found = super().__getitem__(key)
        if found is _UNREAD:
            found = self._wrap(key)
            super().__setitem__(key, found)
        return found

    def __iter__(self) -> Iterator[Any]:
        self._read_all()
        return super().__iter__()

    def keys(self) -> Any:
        return list(self)

    def get(self, key: Any, default: Any = None) -> Any:
        if key in self:
            return self[key]
        return default

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        if key not in self and default is not _MISSING:
            return default
        found = self[key]
        del self[key]
        return found

    def copy(self) -> dict[Any, Variable]:
        return dict(self.items())


class LazyList(list[Variable]):
    """Elements of a real list or tuple, each wrapped at its first use."""

    __slots__ = ("_wrap",)

    def __init__(self, length: int, wrap: Wrap) -> None:
        super().__init__([_Unread(n) for n in range(length)])
        self._wrap = wrap

    def _read(self, index: int) -> Variable:
        found = super().__getitem__(index)
        if isinstance(found, _Unread):
            found = self._wrap(found.position)
            super().__setitem__(index, found)
        return found

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._read(n) for n in range(*index.indices(len(self)))]
        return self._read(index)

    def __iter__(self) -> Iterator[Variable]:
        position = 0
        while position < len(self):
            yield self._read(position)
            position += 1

    def __reversed__(self) -> Iterator[Variable]:
        return reversed(list(self))

    def pop(self, index: Any = -1) -> Variable:
        found = self._read(index)
        del self[index]
        return found

    def copy(self) -> list[Variable]:
        return list(self)

    def __add__(self, other: Any) -> Any:
        return [*self, *other]

    def __mul__(self, count: Any) -> list[Variable]:
        plain: list[Variable] = []
        for _ in range(count):
            plain.extend(self)
        return plain


class OpenList(LazyList):
    """Elements of a real list that nothing has been asked of, not even their number.

    A loop over a graph break may add to a list in each round. As long as it does no more, this
    holds what the trace has added; for all else the number of elements is guarded first.
    """

    __slots__ = ("_close", "_length", "is_open")

    def __init__(self, length: int, wrap: Wrap, close: Callable[[], None]) -> None:
        super().__init__(0, wrap)
        self._length = length
        self._close = close
        self.is_open = True

    def settle(self) -> None:
        """Guard the number of elements; from now on it is as any lazy list."""
        if self.is_open:
            self.is_open = False
            self._close()
            list.__setitem__(self, slice(0, 0), [_Unread(n) for n in range(self._length)])

    def added(self) -> list[Variable]:
        """What the trace has added so far to a list that is still open."""
        return [*list.__iter__(self)]

    def extend(self, values: Iterable[Variable]) -> None:
        for value in values:
            self.append(value)


def _settled(name: str) -> Callable[..., Any]:
    function = getattr(LazyList, name)

    def method(self: OpenList, *args: Any, **kwargs: Any) -> Any:
        self.settle()
        return function(self, *args, **kwargs)

    return method


for _name in (
    *("__add__", "__contains__", "__delitem__", "__eq__", "__getitem__", "__iadd__", "__imul__"),
    *("__iter__", "__len__", "__mul__", "__ne__", "__reversed__", "__rmul__", "__setitem__"),
    *("_read", "clear", "copy", "count", "index", "insert", "pop", "remove", "reverse", "sort"),
):
    setattr(OpenList, _name, _settled(_name))


def is_open(items: object) -> bool:
    """Whether a list of the caller's has only been added to."""
    return isinstance(items, OpenList) and items.is_open


class _Unread(Variable):
    """An element that was not read yet."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position


_UNREAD = _Unread(0)


def raw_items(items: list[Variable]) -> list[Variable]:
    """The elements of a list as they are, of which some may not have been read."""
    return [*list.__iter__(items)]


__all__ = ["LazyDict", "LazyList", "OpenList", "is_open", "raw_items"]
