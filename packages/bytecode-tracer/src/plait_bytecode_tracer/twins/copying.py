"""Python twins of the C functions that say how an object is copied and pickled."""

from __future__ import annotations

import copyreg
from typing import Any

IS_TWIN = True
"""Frames of this module's code are never resumed: the real object has no such code."""
_reduce_0: Any = object.__reduce__
_reduce_1: Any = vars(copyreg)["_reduce_ex"]
_new_object: Any = vars(copyreg)["__newobj__"]
_new_object_ex: Any = vars(copyreg)["__newobj_ex__"]


def reduce_ex(self: Any, protocol: Any) -> Any:
    """`object.__reduce_ex__`."""
    cls: Any = type(self)
    return reduce(self, protocol) if cls.__reduce__ is _reduce_0 else self.__reduce__()


def reduce(self: Any, protocol: Any = 0) -> Any:
    """`object.__reduce__`, which is that of protocol 0."""
    if protocol < 2:
        return _reduce_1(self, protocol)
    args: Any = ()
    kwargs: Any = None
    if hasattr(self, "__getnewargs_ex__"):
        args, kwargs = self.__getnewargs_ex__()
    elif hasattr(self, "__getnewargs__"):
        args = self.__getnewargs__()
    state = self.__getstate__()
    cls = type(self)
    items = iter(self) if isinstance(self, list) else None
    entries = iter(self.items()) if isinstance(self, dict) else None
    if kwargs:
        return _new_object_ex, (cls, args, kwargs), state, items, entries
    return _new_object, (cls, *args), state, items, entries
