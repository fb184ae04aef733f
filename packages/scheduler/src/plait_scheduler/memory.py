"""Where buffers are stored: lifetimes, in-place reuse, and offsets in the arena."""

from __future__ import annotations

from collections.abc import Sequence

from plait_ir_lowering import IndexExpr, as_index
from plait_scheduler.program import (
    ArenaStorage,
    ExternStorage,
    OutputStorage,
    Program,
    SharedStorage,
)
from plait_utils import dataclass

ALIGNMENT = 64
"""Arena offsets are multiples of this many bytes: a cache line, and the widest vector."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A temporary: its size in bytes, and the first and last step that use it."""

    name: str
    nbytes: IndexExpr
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Whether some step uses both."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Offsets in bytes by buffer, and the bytes of the whole arena."""

    offsets: dict[str, IndexExpr]
    nbytes: IndexExpr


def plan_arena(lifetimes: Sequence[Lifetime], *, reuse: bool = True) -> ArenaPlan:
    """Place temporaries so that those alive at one step do not overlap.

    Known sizes are placed largest first, each at the lowest gap that is free during its
    lifetime (greedy by size, Pisarchyk and Lee, "Efficient Memory Management for Deep
    Neural Net Inference", 2020). Sizes that are not known yet follow after these; of
    them, only buffers of equal size share memory.
    """
    known = [life for life in lifetimes if life.nbytes.is_constant]
    unknown = [life for life in lifetimes if not life.nbytes.is_constant]
    offsets, end = _place_known(known, reuse)
    total = as_index(end)
    for slot in _slots(unknown, reuse):
        for life in slot:
            offsets[life.name] = total
        total = total + _aligned(slot[0].nbytes)
    return ArenaPlan({life.name: offsets[life.name] for life in lifetimes}, total)


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes that a program allocates, as expressions over sizes that are not known yet."""

    arena: IndexExpr
    """Temporaries, all together, for the whole run."""
    outputs: IndexExpr
    """What is handed to the caller."""
    extern: IndexExpr
    """Results that external calls allocate, as if all were alive at once."""
    unshared: IndexExpr
    """What the temporaries would take without reuse."""

    @property
    def peak(self) -> IndexExpr:
        """At most so many bytes are allocated at once, workspaces of calls aside."""
        return self.arena + self.outputs + self.extern


def memory_report(program: Program) -> MemoryReport:
    """How much memory `program` allocates."""
    sums = {kind: as_index(0) for kind in ("outputs", "extern", "unshared")}
    for buffer in program.buffers:
        match buffer.storage:
            case OutputStorage():
                sums["outputs"] = sums["outputs"] + buffer.nbytes
            case ExternStorage():
                sums["extern"] = sums["extern"] + buffer.nbytes
            case ArenaStorage() | SharedStorage():
                sums["unshared"] = sums["unshared"] + buffer.nbytes
    return MemoryReport(program.arena_nbytes, sums["outputs"], sums["extern"], sums["unshared"])


def _place_known(lifetimes: Sequence[Lifetime], reuse: bool) -> tuple[dict[str, IndexExpr], int]:
    placed: list[tuple[int, int, int, int]] = []
    offsets: dict[str, IndexExpr] = {}
    end = 0
    for life in sorted(lifetimes, key=lambda life: (-life.nbytes.as_int(), life.first, life.name)):
        size = _aligned(life.nbytes).as_int()
        begin, last = life.first, life.last
        taken = sorted(
            [
                (start, stop)
                for start, stop, first, until in placed
                if not reuse or (first <= last and begin <= until)
            ]
        )
        at = 0
        for start, stop in taken:
            if at + size <= start:
                break
            at = max(at, stop)
        placed.append((at, at + size, begin, last))
        offsets[life.name] = as_index(at)
        end = max(end, at + size)
    return offsets, end


def _slots(lifetimes: Sequence[Lifetime], reuse: bool) -> list[list[Lifetime]]:
    """Buffers of one size, no two of a slot alive at once."""
    slots: list[list[Lifetime]] = []
    for life in sorted(lifetimes, key=lambda life: (life.first, life.name)):
        fits = [
            slot
            for slot in slots
            if reuse and slot[0].nbytes is life.nbytes and not any(life.meets(o) for o in slot)
        ]
        if fits:
            fits[0].append(life)
        else:
            slots.append([life])
    return slots


def _aligned(nbytes: IndexExpr) -> IndexExpr:
    return (nbytes + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT
