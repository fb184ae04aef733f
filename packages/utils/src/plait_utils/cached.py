"""Properties that are computed once.

`functools.cached_property` has a lock before Python 3.12. A child that is forked while a thread
computes such a property waits for that for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_Value = TypeVar("_Value")


class cached_property(Generic[_Value]):  # it stands where that of functools would
    """As that of `functools`, without a lock: threads may compute it twice, and keep one value."""

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[_Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _Value: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        kept: dict[str, Any] = vars(instance)
        if self._name not in kept:
            return kept.setdefault(self._name, self._compute(instance))
        return kept[self._name]
