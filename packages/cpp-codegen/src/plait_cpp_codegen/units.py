"""The source of a program, whole or as units that are compiled side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence

from plait_cpp_codegen.native_text import native_text
from plait_utils import dataclass, usable_processors
from plait_utils.cached import cached_property

_UNIT = 6_000
"""Characters of functions that are worth a unit of their own: 30 milliseconds of g++."""
_LEAST = 2 * _UNIT
_HOST_SHARE = 16
"""So many characters of the host, which calls functions, take as long as one of a kernel."""
_GUARDED = 4_500
"""Characters of a kernel that take as long as a value that is only computed where a mask holds: it
is compiled for all lanes, and once more for one."""
_RANGE = re.compile(r"^KERNEL (void \w+\(int64_t begin, int64_t end, void\* context\)) {$", re.M)


@dataclass(frozen=True)
class Source:
    """C++ of a program.

    Args:
        head: what all texts begin with, before the definitions that they use.
        functions: those of the kernels, marked by ``KERNEL``; none needs another.
        host: what calls them.
    """

    head: str
    functions: tuple[str, ...]
    host: str

    @property
    def is_bare(self) -> bool:
        """Whether it needs nothing of what starts and ends libraries, as blocks of memory do that
        are freed with their thread."""
        return not any("thread_local" in each for each in self.functions)

    @cached_property
    def text(self) -> str:
        """All of it, to be read, or compiled as one unit."""
        return self._unit("#define KERNEL static", [*self.functions, self.host])

    def _unit(self, marks: str, texts: Sequence[str]) -> str:
        return "\n".join([marks, self.head, native_text(texts), *texts])

    def units(self, most: int | None = None) -> tuple[str, ...]:
        """Texts that are compiled side by side and linked: one for a small program.

        Args:
            most: how many at most; by default as many as this process may use processors.
        """
        work = [_work(each) for each in self.functions]
        of_host = len(self.host) // _HOST_SHARE
        size = sum(work) + of_host
        count = min(
            usable_processors() if most is None else most, size // _UNIT, len(self.functions) + 1
        )
        if size < _LEAST or count < 2:
            return (self.text,)
        declared = [f"{found};" for each in self.functions for found in _RANGE.findall(each)]
        host = "\n".join([*declared, self.host])
        parts = [(host, of_host), *zip(self.functions, work, strict=True)]
        return tuple(self._unit("#define KERNEL", texts) for texts in _shared_out(parts, count))


def _work(function: str) -> int:
    """How long a kernel takes to compile, in characters."""
    return len(function) + _GUARDED * function.count("guarded<")


def _shared_out(parts: Sequence[tuple[str, int]], count: int) -> list[list[str]]:
    """The texts in groups of about the same work: the largest first, each where least is yet."""
    groups: list[tuple[list[int], int]] = [([], 0)] * count
    for place in sorted(range(len(parts)), key=lambda place: -parts[place][1]):
        least = min(range(count), key=lambda group: groups[group][1])
        places, work = groups[least]
        groups[least] = ([*places, place], work + parts[place][1])
    return [[parts[place][0] for place in sorted(places)] for places, _ in groups if places]
