"""Which instruction handles an exception, from a code object's exception table."""

from __future__ import annotations

import types
from functools import lru_cache

from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class HandlerRange:
    """Instructions whose exceptions go to one handler. Offsets are in bytes."""

    start: int
    end: int
    target: int
    depth: int
    """How much of the stack the handler keeps."""
    pushes_offset: bool
    """Whether the offset of the raising instruction is pushed below the exception."""


@lru_cache(maxsize=4096)
def handler_ranges(code: types.CodeType) -> tuple[HandlerRange, ...]:
    """The exception table of a code object.

    The format is that of CPython's `Objects/exception_handling_notes.txt`: numbers in
    groups of six bits, most significant first, start, length and target counted in code
    units of two bytes.
    """
    numbers = iter(_numbers(code.co_exceptiontable))
    found = []
    for start, length, target, packed in zip(numbers, numbers, numbers, numbers, strict=True):
        span = HandlerRange(
            2 * start, 2 * (start + length), 2 * target, packed >> 1, bool(packed & 1)
        )
        found.append(span)
    return tuple(found)


def _numbers(table: bytes) -> list[int]:
    found: list[int] = []
    value = 0
    for byte in table:
        value = (value << 6) | (byte & 63)
        if not byte & 64:
            found.append(value)
            value = 0
    return found


def handler_at(code: types.CodeType, offset: int) -> HandlerRange | None:
    """The handler of exceptions that the instruction at `offset` raises."""
    for span in handler_ranges(code):
        if span.start <= offset < span.end:
            return span
    return None
