"""How circumstances differ from those of the nearest stored entry, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_IN_WORDS = {
    "format": "plait stored entries in another form",
    "code": "the code of the function changed",
    "plait": "plait's own files are others",
}
"""Facts whose texts tell people nothing."""
_MOST = 5
"""How many parts of one fact are listed."""
_KERNEL = re.compile("_[0-9a-f]{8}")
"""What tells kernels of one name apart: it follows from what they do."""
_HASH = re.compile("[0-9a-f]{8,}")


def differences(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What of the facts of `now` was otherwise when an entry was stored; each in a few words.

    A fact has parts, one in a line, which are names with values or stand for themselves.
    """
    found: list[str] = []
    for name, text in now.items():
        before = stored.get(name, "")
        if type(before) is not str or before == text:
            continue
        if name in _IN_WORDS:
            found.append(_IN_WORDS[name])
            continue
        parts = list(_parts(before, text))
        more = f" and {len(parts) - _MOST} more" if len(parts) > _MOST else ""
        found.append(f"{name}: {', '.join(parts[:_MOST])}{more}")
    return found


def _parts(before: str, now: str) -> Iterator[str]:
    """The parts of a fact that differ."""
    if not any(mark in text for text in (before, now) for mark in "\n="):
        yield f"{before} -> {now}"  # it has none
        return
    old, new = _named(before), _named(now)
    for name in dict.fromkeys([*old, *new]):
        if name not in new:
            yield f"{name} is gone"
        elif name not in old:
            yield f"{name} is new"
        elif old[name] != new[name]:
            is_hash = all(map(_HASH.fullmatch, (old[name], new[name])))
            told = "changed" if is_hash else f"{old[name]} -> {new[name]}"
            yield f"{name} {told}"


def _named(text: str) -> dict[str, str]:
    """The parts of a fact by their names."""
    lines = (line.partition("=") for line in text.split("\n") if line)
    return {name: value for name, _, value in lines}


def program_difference(stored: str, now: str) -> str:
    """How the source of a program differs from the last one that was built for its function."""
    before = {_KERNEL.sub("", line) for line in stored.splitlines()}
    new = [line.strip() for line in now.splitlines() if _KERNEL.sub("", line) not in before]
    if not new:
        return "the compiler, its arguments or the processor are others"
    return f"{len(new)} lines of its source are new, the first is: {new[0][:100]}"
