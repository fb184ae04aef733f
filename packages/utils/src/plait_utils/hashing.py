"""Stable content hashes for cache keys and names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

Hashable: TypeAlias = "str | bytes | bool | int | float | Sequence[Hashable] | None"


def stable_hash(*parts: Hashable) -> str:
    """64 hexadecimal digits (SHA-256) of `parts`, the same in every process.

    Each part is tagged with its type and length, so `("1",)`, `(1,)` and `("", "1")`
    differ. Raises TypeError for a part of another type.
    """
    digest = hashlib.sha256()
    for part in parts:
        _feed(digest, part)
    return digest.hexdigest()


def _feed(digest: hashlib._Hash, part: Hashable) -> None:
    match part:
        case str():
            tag, data = b"s", part.encode("utf-8", "surrogatepass")
        case bytes():
            tag, data = b"y", part
        case bool():
            tag, data = b"b", str(part).encode()
        case int():
            tag, data = b"i", str(part).encode()
        case float():
            tag, data = b"f", part.hex().encode()
        case None:
            tag, data = b"n", b""
        case tuple() | list():
            digest.update(b"l%d:" % len(part))
            for item in part:
                _feed(digest, item)
            return
        case _:
            raise TypeError(f"cannot hash a {type(part).__name__} stably")
    digest.update(tag + b"%d:" % len(data))
    digest.update(data)
