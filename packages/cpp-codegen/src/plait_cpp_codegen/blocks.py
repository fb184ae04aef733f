"""Temporaries with blocks of their own, so that their memory is anybody's when they are gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from plait_ir_lowering import TensorRef
from plait_scheduler import (
    Allocate,
    ArenaPlan,
    ArenaStorage,
    Free,
    Lifetime,
    OutputStorage,
    PartStorage,
    Program,
    ProgramBuffer,
    Return,
    SharedStorage,
    plan_arena,
)

LEAST_BLOCK = 1 << 20
"""Bytes of a temporary from which on an allocation, a microsecond or two, is nothing beside the
kernels that write and read it."""


def memory_of(buffers: Mapping[str, ProgramBuffer], name: str) -> str:
    """The buffer in whose memory a buffer lies: itself, what it takes over, or is a part of."""
    storage = buffers[name].storage
    while isinstance(storage, SharedStorage | PartStorage):
        name, storage = storage.buffer, buffers[storage.buffer].storage
    return name


def large_temporaries(program: Program) -> frozenset[str]:
    """The temporaries that are worth a block of their own."""
    return frozenset(
        each.name
        for each in program.buffers
        if isinstance(each.storage, ArenaStorage)
        and each.nbytes.is_constant
        and each.nbytes.as_int() >= LEAST_BLOCK
    )


def host_temporaries(program: Program) -> frozenset[str]:
    """The temporaries in the host's memory, of a program on a GPU, on which its arena is."""
    last = program.steps[-1]
    outputs = last.outputs if isinstance(last, Return) else ()
    returned = {out.buffer for out in outputs if isinstance(out, TensorRef)}
    return frozenset(
        each.name
        for each in program.buffers
        if isinstance(each.storage, ArenaStorage | OutputStorage)
        and each.device.type == "cpu"
        and each.name not in returned
    )


def without(program: Program, names: Collection[str]) -> Program:
    """The program with an arena for the other temporaries alone."""
    if not names:
        return program
    others = {each.name for each in program.buffers if isinstance(each.storage, ArenaStorage)}
    plan = planned(program, others.difference(names))
    moved = tuple(
        replace(each, storage=ArenaStorage(plan.offsets[each.name]))
        if each.name in plan.offsets
        else each
        for each in program.buffers
    )
    return replace(program, buffers=moved, arena_nbytes=plan.nbytes)


def planned(program: Program, names: Collection[str]) -> ArenaPlan:
    """Where these temporaries lie in one block that they share."""
    return plan_arena(_lives(program, names))


def _lives(program: Program, names: Collection[str]) -> list[Lifetime]:
    """From which step to which each of these is alive: to the end, where some buffer in its memory
    is not freed."""
    buffers = {buffer.name: buffer for buffer in program.buffers}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    users: Counter[str] = Counter()
    for at, step in enumerate(program.steps):
        if isinstance(step, Allocate | Free):
            memory = memory_of(buffers, step.buffer)
            first.setdefault(memory, at)
            last[memory] = at
            users[memory] += 1 if isinstance(step, Allocate) else -1
    last |= {memory: len(program.steps) for memory, count in users.items() if count > 0}
    return [
        Lifetime(each.name, each.nbytes, first[each.name], last[each.name])
        for each in program.buffers
        if each.name in names and each.name in first
    ]
