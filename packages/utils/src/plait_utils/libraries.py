"""Whether a compiled shared library is whole, found without loading it.

Opening a library whose end is missing kills the process (the loader maps the file and
touches pages that are not there), so a file's own tables are checked first. They are
those of the System V ABI's ELF format, https://refspecs.linuxfoundation.org/elf.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

_HEADER = struct.Struct("=16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("=IIQQQQQQ")
_SECTION = struct.Struct("=IIQQQQIIQQ")
_SYMBOL = struct.Struct("=IBBHQQ")
_IDENTITY = b"\x7fELF\x02" + (b"\x01" if sys.byteorder == "little" else b"\x02")
_SHARED_OBJECT = 3
_DYNAMIC_SYMBOLS = 11
_NO_DATA = 8


def find_library_damage(path: Path, symbol: str | None = None) -> str | None:
    """Why a file is not a whole shared library that defines `symbol`; None if it is.

    Raises OSError for a file that cannot be read.
    """
    data = path.read_bytes()
    if len(data) < _HEADER.size:
        return f"file too short ({len(data)} bytes)"
    header = _HEADER.unpack_from(data)
    if not header[0].startswith(_IDENTITY):
        return "it is no 64-bit ELF file of this machine's byte order"
    if header[1] != _SHARED_OBJECT:
        return "it is an ELF file but no shared library"
    segments = _table(data, _SEGMENT, header[5], header[9], header[10])
    sections = _table(data, _SECTION, header[6], header[11], header[12])
    if not segments or sections is None:
        return f"the file ends before its tables ({len(data)} bytes)"
    spans = [(segment[2], segment[5]) for segment in segments]
    spans += [(section[4], section[5]) for section in sections if section[1] != _NO_DATA]
    end = max(start + size for start, size in spans)
    if end > len(data):
        return f"the file ends after {len(data)} of {end} bytes"
    if symbol is not None and sections and symbol.encode() not in _defined(data, sections):
        return f"it does not define {symbol}"
    return None


def _table(
    data: bytes, row: struct.Struct, start: int, size: int, count: int
) -> list[tuple[int, ...]] | None:
    """The rows of one of the file's tables; None where they do not lie in the file."""
    if count and (size != row.size or start + size * count > len(data)):
        return None
    return [row.unpack_from(data, start + size * number) for number in range(count)]


def _defined(data: bytes, sections: list[tuple[int, ...]]) -> set[bytes]:
    """The names of the symbols that a library defines for others."""
    names: set[bytes] = set()
    for section in sections:
        if section[1] != _DYNAMIC_SYMBOLS or section[6] >= len(sections):
            continue
        start, size = sections[section[6]][4:6]
        strings = data[start : start + size]
        table = data[section[4] : section[4] + section[5] // _SYMBOL.size * _SYMBOL.size]
        for name, _, _, where, _, _ in _SYMBOL.iter_unpack(table):
            if where and name < len(strings):
                names.add(strings[name : strings.find(b"\0", name)])
    return names
