"""Python classes that stand for C classes while tracing.

An instance in the trace is an object of the twin, whose Python is followed like any other;
for the program its class is the C class, and where it escapes it is made as one.
"""

from __future__ import annotations

import _thread
import collections
import functools
import gc
import io
import types
from collections.abc import Callable
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.twins import deques, proxies, small, streams, threads
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    ObjectVariable,
    Remake,
    SequenceVariable,
    Variable,
)
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Twin:
    """What a twin stands for."""

    kind: type
    again: Callable[[dict[str, Variable]], Remake]
    """How to make the real object, by the twin's attributes."""
    is_made: bool = True
    """Whether calls of the C class make it."""


def _key(compare: Callable[[Any, Any], Any], obj: Any) -> Any:
    return functools.cmp_to_key(compare)(obj)


def _deque(maxlen: int | None) -> collections.deque[Any]:
    return collections.deque(maxlen=maxlen)


def _stream(cls: Callable[[Any], Any], value: Any, position: int, closed: bool) -> Any:
    made = cls(value)
    made.seek(position)
    if closed:
        made.close()
    return made


def outside_deque(items: SequenceVariable, maxlen: int | None, source: Source) -> ObjectVariable:
    """A deque of the caller's."""
    parts = {"_maxlen": maxlen, "_changes": 0, "_active": False}
    known: dict[str, Variable] = {name: Known(value) for name, value in parts.items()}
    known["_items"] = items
    return ObjectVariable(deques.deque, known, source=source)


def _lock(make: Callable[[], Any], times: int) -> Any:
    made = make()
    for _ in range(times):
        made.acquire()
    return made


def proxy_of(mapping: Variable, source: Source | None = None) -> ObjectVariable:
    """A read-only view of a mapping."""
    return ObjectVariable(proxies.mappingproxy, {"_mapping": mapping}, source=source)


def shown_by(proxy: Any) -> Any:
    """The mapping behind a proxy."""
    return gc.get_referents(proxy)[0]


def _deque_iterator(own: dict[str, Variable]) -> Remake:
    raise TraceBreakError("GB0009", "an iterator over a deque that leaves the traced code")


def _text_again(own: dict[str, Variable]) -> Remake:
    return Remake(_stream, [Known(io.StringIO), own["_value"], own["_position"], own["closed"]])


def _bytes_again(own: dict[str, Variable]) -> Remake:
    return Remake(_stream, [Known(io.BytesIO), own["_value"], own["_position"], own["closed"]])


TWINS: dict[type, Twin] = {
    small.ComparisonKey: Twin(
        type(functools.cmp_to_key(int.__sub__)),
        lambda own: Remake(_key, [own["_compare"], own["obj"]]),
        is_made=False,
    ),
    deques.deque: Twin(
        collections.deque,
        lambda own: Remake(_deque, [own["_maxlen"]], fill=("extend", own["_items"])),
    ),
    deques.DequeIterator: Twin(type(iter(collections.deque())), _deque_iterator),
    deques.DequeReverseIterator: Twin(type(reversed(collections.deque())), _deque_iterator),
    small.SimpleNamespace: Twin(
        types.SimpleNamespace,
        lambda own: Remake(types.SimpleNamespace, [], fill=("__dict__.update", DictVariable(own))),
    ),
    threads.Lock: Twin(
        _thread.LockType, lambda own: Remake(_lock, [Known(_thread.allocate_lock), own["_held"]])
    ),
    threads.RLock: Twin(
        _thread.RLock, lambda own: Remake(_lock, [Known(_thread.RLock), own["_count"]])
    ),
    proxies.mappingproxy: Twin(
        types.MappingProxyType, lambda own: Remake(types.MappingProxyType, [own["_mapping"]])
    ),
    streams.StringIO: Twin(io.StringIO, _text_again),
    streams.BytesIO: Twin(io.BytesIO, _bytes_again),
}
"""By the Python class."""
MADE: dict[type, type] = {twin.kind: cls for cls, twin in TWINS.items() if twin.is_made}
"""The twins that calls of C classes make, by the C class."""
