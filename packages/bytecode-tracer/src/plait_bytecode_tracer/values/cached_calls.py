"""What an `lru_cache` of the caller's holds, and calls of which it held no result."""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from plait_bytecode_tracer.guards.exact import exact_key
from plait_bytecode_tracer.values.constants import is_constant
from plait_utils import dataclass

ABSENT = object()
"""What a cache holds under a key that it does not have."""


def cached_result(function: Any, key: object) -> object:
    """What an `lru_cache` holds under a key, or :data:`ABSENT`; nothing is called or counted.

    The garbage collector tells what a cache refers to: of a bounded one the keys and results
    of all entries, then the dict by which they are found.
    """
    found = gc.get_referents(function)
    own = function.__dict__
    table = next(r for r in found if type(r) is dict and r is not own)
    if key not in table:
        return ABSENT
    entry = table[key]
    if function.cache_parameters()["maxsize"] is None:
        return entry
    for place in range(1, len(found) - 2, 3):
        if found[place] == key:
            return found[place + 1]
    return ABSENT


def cache_key(function: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """The key under which a cache holds the result of a call, as C makes it."""
    typed = function.cache_parameters()["typed"]
    if not typed and not kwargs and len(args) == 1 and type(args[0]) in (int, str):
        return args[0]
    parts = list(args)
    if kwargs:
        parts.append(next(r for r in gc.get_referents(function) if type(r) is object))
        for name, value in kwargs.items():
            parts += [name, value]
    if typed:
        parts += [type(value) for value in (*args, *kwargs.values())]
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class FirstCall:
    """A call of which the function's cache held no result, so that it was traced.

    That it held none is guarded by nothing: the entry itself fills the cache.
    """

    function: Any
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    result: object
    """A constant."""

    @property
    def is_plain(self) -> bool:
        """Whether what it is given is constants and loggers, which do not live for one call."""
        given = (*self.args, *self.kwargs.values())
        return all(is_constant(each) or type(each) is logging.Logger for each in given)

    def fits(self) -> bool:
        """Whether the cache holds nothing else for it than its result."""
        found = cached_result(self.function, cache_key(self.function, self.args, self.kwargs))
        return found is ABSENT or exact_key(found) == exact_key(self.result)
