"""What of a kernel's code is chosen: by rule, or by timing the candidates.

Each field is one choice, and its default the rule's, which was chosen for most kernels on the
machines at hand. No choice but the vectors' width changes what is rounded where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Choices:
    """How one kernel is written."""

    cycles_per_task: int = 8192
    """The least work that is worth another thread: how the points are partitioned."""
    tile_side: int = 64
    """Rows and columns of a tile of what is read along columns."""
    columns_per_task: int = 8192
    """The widest block of columns of few rows that one task computes."""
    column_vectors: int = 4
    """How many vectors of columns a task of reductions down columns has."""
    vectors: str = "whole"
    """ "whole": as wide as the machine's; "half": half as wide, which some clock higher for."""

    def __str__(self) -> str:
        """Where they differ from the rule's."""
        return ", ".join(
            f"{each.name.replace('_', ' ')} {_spelled(getattr(self, each.name))} instead of "
            f"{each.default}"
            for each in fields(self)
            if getattr(self, each.name) != each.default
        )

    def as_data(self) -> dict[str, Any]:
        """The choices by name, as JSON has them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def _spelled(value: object) -> str:
    return "without limit" if value == _ALL else str(value)


_ALL = 1 << 40
"""More cycles than any kernel takes: one thread does it all."""
RULE = Choices()
"""What is chosen where nothing is timed."""

CANDIDATES: Mapping[str, tuple[Any, ...]] = {
    # A thread is woken in some microseconds: fewer for loops that wait for memory pay sooner.
    "cycles_per_task": (2048, 32768, _ALL),
    # Small tiles stay in the nearest cache beside what else is read; large ones read whole pages.
    "tile_side": (16, 32, 128),
    # Narrow blocks share a row among threads; wide ones read on.
    "columns_per_task": (2048, 32768),
    # Rows of a line of the cache at least, up to what the registers hold.
    "column_vectors": (1, 2, 8, 16),
    # Wide vectors slow the clock of some machines, and waste more at the ends of short rows.
    "vectors": ("half",),
}
"""For each choice what is tried beside the rule's."""


def candidates() -> tuple[Choices, ...]:
    """Each choice that differs from the rule's in one place."""
    return tuple(
        replace(RULE, **{name: value}) for name, values in CANDIDATES.items() for value in values
    )


def choices_of(data: object) -> Choices | None:
    """The choices that `as_data` has written; None where it has not."""
    known = {each.name: each.default for each in fields(Choices)}
    if not isinstance(data, dict) or data.keys() != known.keys():
        return None
    if any(data[name] not in (known[name], *CANDIDATES[name]) for name in known):
        return None
    return Choices(**data)
