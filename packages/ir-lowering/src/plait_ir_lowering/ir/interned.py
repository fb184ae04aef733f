"""Immutable nodes of which equal means identical."""

from __future__ import annotations

import threading
import weakref
from typing import Any, ClassVar, Self, cast

from plait_utils.forks import new_lock


class Interned:
    """Base of immutable nodes: building a node twice gives the same object.

    A subclass lists the fields that define it in `__match_args__`, fills further slots
    in `_finish`, and builds through `_intern`. Equality and hashing are by identity, so
    both cost the same however deep a node is.
    """

    __slots__ = ("__weakref__",)
    __match_args__: ClassVar[tuple[str, ...]] = ()

    _table: ClassVar[weakref.WeakValueDictionary[object, Interned]] = weakref.WeakValueDictionary()
    _lock: ClassVar[threading.Lock] = new_lock()

    @classmethod
    def _intern(cls, fields: tuple[object, ...], key: object | None = None) -> Self:
        """Return the node with `fields`; `key` replaces them where == is too coarse."""
        full_key = (cls, fields if key is None else key)
        found = Interned._table.get(full_key)
        if found is not None:
            return cast(Self, found)
        node = object.__new__(cls)
        for name, value in zip(cls.__match_args__, fields, strict=True):
            object.__setattr__(node, name, value)
        node._finish()
        with Interned._lock:
            return cast(Self, Interned._table.setdefault(full_key, node))

    def _finish(self) -> None:
        """Fill derived slots of a node that is being built."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; build a new one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; build a new one")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__)
