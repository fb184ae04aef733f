"""Containers of the caller whose elements become tracked when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from plait_bytecode_tracer.values.hook_numbers import HookKey, HookNumber
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

    def has_number(self, number: HookNumber) -> bool:
        """Whether it has the number of a hook, of those that it had when the call began."""
        found = number.original in self._original
        if self._original or not self._whole:
            self._guard(HookKey(number), found)
        return found

    def __len__(self) -> int:
        self._read_all()
        return super().__len__()

    def __bool__(self) -> bool:
        return len(self) > 0

    def __getitem__(self, key: Any) -> Variable:
        if key not in self:
            raise KeyError(key)
        return self._read(key)

    def _read(self, key: Any) -> Variable:
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
        super().__init__([Unread(n) for n in range(length)])
        self._wrap = wrap

    def _read(self, index: int) -> Variable:
        found = super().__getitem__(index)
        if isinstance(found, Unread):
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
        found = super().pop(index)
        return self._wrap(found.position) if isinstance(found, Unread) else found

    def copy(self) -> list[Variable]:
        return list(self)

    def __add__(self, other: Any) -> Any:
        return [*self, *other]

    def __mul__(self, count: Any) -> list[Variable]:
        plain: list[Variable] = []
        for _ in range(count):
            plain.extend(self)
        return plain


class Unread(Variable):
    """An element that was not read yet."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position


_UNREAD = Unread(0)


__all__ = ["LazyDict", "LazyList", "Unread", "Wrap"]
