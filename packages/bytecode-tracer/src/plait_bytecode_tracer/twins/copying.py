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
    args, kwargs = _new_arguments(self)
    state = self.__getstate__()
    cls = type(self)
    items = iter(self) if isinstance(self, list) else None
    entries = iter(self.items()) if isinstance(self, dict) else None
    if kwargs:
        return _new_object_ex, (cls, args, kwargs), state, items, entries
    return _new_object, (cls, *args), state, items, entries


def special(self: Any, name: str) -> Any:
    """The method that an object's class has under a name, bound; None if it has none."""
    for cls in type(self).__mro__:
        if name in vars(cls):
            return vars(cls)[name].__get__(self, type(self))
    return None


def _new_arguments(self: Any) -> Any:
    """What `__new__` is to be called with, by position and by name, as the object's class says."""
    ask = special(self, "__getnewargs_ex__")
    if ask is not None:
        found = ask()
        if not isinstance(found, tuple):
            kind = type(found).__name__
            raise TypeError(f"__getnewargs_ex__ should return a tuple, not '{kind}'")
        if len(found) != 2:
            text = f"__getnewargs_ex__ should return a tuple of length 2, not {len(found)}"
            raise ValueError(text)
        for place, item, wanted in (("first", found[0], tuple), ("second", found[1], dict)):
            if not isinstance(item, wanted):
                text = f"{place} item of the tuple returned by __getnewargs_ex__ must be a"
                raise TypeError(f"{text} {wanted.__name__}, not '{type(item).__name__}'")
        return found
    ask = special(self, "__getnewargs__")
    if ask is None:
        return (), None
    args = ask()
    if not isinstance(args, tuple):
        raise TypeError(f"__getnewargs__ should return a tuple, not '{type(args).__name__}'")
    return args, None
