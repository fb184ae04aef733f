"""Python twins of the streams in memory of `io`, in terms of strings and bytes.

Written for tracing, not to be used: `twins.registry` says what each stands for.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NoReturn

IS_TWIN = True
"""Frames of this module's code are never resumed: the real object has no such code."""


def _size(value: Any) -> Any:
    """A number of characters, or None for all."""
    if value is not None and not hasattr(type(value), "__index__"):
        name = type(value).__name__
        raise TypeError(f"argument should be integer or None, not {name!r}")
    return value if value is None else operator.index(value)


class _Stream:
    """What streams in memory share: a value, a position and whether they are closed."""

    __slots__ = ("_position", "_value", "closed")
    _newline: Any = "\n"
    _closed_text = "I/O operation on closed file"

    def _start(self, value: Any) -> None:
        self._value = value
        self._position = 0
        self.closed = False

    def _check(self) -> None:
        if self.closed:
            raise ValueError(self._closed_text)

    def getvalue(self) -> Any:
        self._check()
        return self._value

    def read(self, size: Any = -1, /) -> Any:
        self._check()
        rest, size = len(self._value) - self._position, _size(size)
        if size is None or size < 0 or size > rest:
            size = max(rest, 0)
        start = self._position
        self._position = start + size
        return self._value[start : start + size]

    def readline(self, size: Any = -1, /) -> Any:
        self._check()
        start, size = self._position, _size(size)
        found = self._value.find(self._newline, start)
        end = len(self._value) if found < 0 else found + 1
        if size is not None and 0 <= size < end - start:
            end = start + size
        self._position = max(end, start)
        return self._value[start:end]

    def readlines(self, hint: Any = -1, /) -> list[Any]:
        lines, total, hint = [], 0, _size(hint)
        while line := self.readline():
            lines.append(line)
            total += len(line)
            if hint is not None and 0 < hint <= total:
                break
        return lines

    def _put(self, text: Any, padding: Any) -> int:
        self._check()
        if not text:
            return 0
        gap = self._position - len(self._value)
        before = self._value[: self._position] + padding * max(gap, 0)
        self._value = before + text + self._value[self._position + len(text) :]
        self._position += len(text)
        return len(text)

    def writelines(self, lines: Iterable[Any], /) -> None:
        for line in lines:
            self.write(line)

    def write(self, text: Any, /) -> int:
        raise NotImplementedError

    def tell(self) -> int:
        self._check()
        return self._position

    def truncate(self, size: Any = None, /) -> int:
        self._check()
        size = _size(size)
        if size is None:
            size = self._position
        elif size < 0:
            raise ValueError(f"Negative size value {size}")
        self._value = self._value[:size]
        return int(size)

    def close(self) -> None:
        self.closed = True

    def flush(self) -> None:
        self._check()

    def isatty(self) -> bool:
        self._check()
        return False

    def readable(self) -> bool:
        self._check()
        return True

    writable = readable
    seekable = readable

    def __iter__(self) -> Any:
        self._check()
        return self

    def __next__(self) -> Any:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def __enter__(self) -> Any:
        self._check()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class StringIO(_Stream):
    """`io.StringIO` that translates no line ends."""

    __slots__ = ()

    def __init__(self, initial_value: Any = "") -> None:
        if initial_value is not None and not isinstance(initial_value, str):
            name = type(initial_value).__name__
            raise TypeError(f"initial_value must be str or None, not {name}")
        self._start(initial_value or "")

    def write(self, text: Any, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"string argument expected, got {type(text).__name__!r}")
        return self._put(text, "\0")

    def seek(self, offset: Any, whence: Any = 0, /) -> int:
        offset, whence = operator.index(offset), operator.index(whence)
        self._check()
        if whence not in (0, 1, 2):
            raise ValueError(f"Invalid whence ({whence}, should be 0, 1 or 2)")
        if whence == 0 and offset < 0:
            raise ValueError(f"Negative seek position {offset}")
        if whence and offset:
            raise OSError("Can't do nonzero cur-relative seeks")
        if whence != 1:
            self._position = len(self._value) if whence else offset
        return int(self._position)


class BytesIO(_Stream):
    """`io.BytesIO`."""

    __slots__ = ()
    _newline = b"\n"
    _closed_text = "I/O operation on closed file."

    def __init__(self, initial_bytes: Any = b"") -> None:
        self._start(_bytes_of(initial_bytes) if initial_bytes is not None else b"")

    def write(self, data: Any, /) -> int:
        return self._put(_bytes_of(data), b"\0")

    def seek(self, offset: Any, whence: Any = 0, /) -> int:
        offset, whence = operator.index(offset), operator.index(whence)
        self._check()
        if whence == 0 and offset < 0:
            raise ValueError(f"negative seek value {offset}")
        if whence not in (0, 1, 2):
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        base = 0 if whence == 0 else self._position if whence == 1 else len(self._value)
        self._position = max(base + offset, 0)
        return int(self._position)


def _bytes_of(data: Any) -> Any:
    if isinstance(data, str):
        _no_bytes(data)
    return data if isinstance(data, bytes) else bytes(data)


def _no_bytes(data: Any) -> NoReturn:
    raise TypeError(f"a bytes-like object is required, not {type(data).__name__!r}")
