"""A Python twin of `types.MappingProxyType`, followed by the tracer as it is.

Whatever it is asked, its mapping answers, as it is then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

IS_TWIN = True
"""Frames of this module's code are never resumed: the real object has no such code."""


class mappingproxy:  # the name of the original, which errors tell
    """`types.MappingProxyType`."""

    __slots__ = ("_mapping",)

    def __init__(self, mapping: Any) -> None:
        kind = type(mapping)
        if not hasattr(kind, "__getitem__") or issubclass(kind, (list, tuple)):
            raise TypeError(f"mappingproxy() argument must be a mapping, not {kind.__name__}")
        self._mapping = mapping

    def __getitem__(self, key: Any, /) -> Any:
        return self._mapping[key]

    def __contains__(self, key: Any, /) -> Any:
        return key in self._mapping

    def __len__(self) -> int:
        return len(self._mapping)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping)

    def __reversed__(self) -> Any:
        return self._mapping.__reversed__()

    def get(self, key: Any, default: Any = None, /) -> Any:
        return self._mapping.get(key, default)

    def keys(self) -> Any:
        return self._mapping.keys()

    def values(self) -> Any:
        return self._mapping.values()

    def items(self) -> Any:
        return self._mapping.items()

    def copy(self) -> Any:
        return self._mapping.copy()

    def __or__(self, other: Any, /) -> Any:
        return self._mapping | (other._mapping if isinstance(other, mappingproxy) else other)

    def __ror__(self, other: Any, /) -> Any:
        return other | self._mapping

    def __ior__(self, other: Any, /) -> Any:
        raise TypeError(f"'|=' is not supported by {type(self).__name__}; use '|' instead")

    def __eq__(self, other: Any, /) -> Any:
        return self._mapping == other

    def __ne__(self, other: Any, /) -> Any:
        return self._mapping != other

    def __lt__(self, other: Any, /) -> Any:
        return self._mapping < other

    def __le__(self, other: Any, /) -> Any:
        return self._mapping <= other

    def __gt__(self, other: Any, /) -> Any:
        return self._mapping > other

    def __ge__(self, other: Any, /) -> Any:
        return self._mapping >= other

    if sys.version_info >= (3, 12):

        def __hash__(self) -> Any:
            return hash(self._mapping)

    else:
        __hash__ = None  # type: ignore[assignment]  # as of the original

    def __str__(self) -> str:
        return str(self._mapping)

    def __repr__(self) -> str:
        return f"mappingproxy({self._mapping!r})"
