"""Which buffers begin at multiples of what a thread of a GPU reads or writes at once."""

from __future__ import annotations

from collections.abc import Mapping

from plait_scheduler.program import Launch, PartStorage, ProgramBuffer, SharedStorage

ACCESS_BYTES = 16
"""Bytes that a thread of a GPU reads or writes at once."""


def aligned_places(launch: Launch, buffers: Mapping[str, ProgramBuffer]) -> tuple[bool, ...]:
    """For each parameter of a launch, whether it begins at a multiple of 16 bytes, where inputs
    do."""
    return tuple(
        _begins_aligned(buffers, name) and offset * buffers[name].dtype.itemsize % ACCESS_BYTES == 0
        for name, offset in launch.places
    )


def _begins_aligned(buffers: Mapping[str, ProgramBuffer], name: str) -> bool:
    buffer = buffers[name]
    match buffer.storage:
        case SharedStorage(other):
            return _begins_aligned(buffers, other)
        case PartStorage(other, offset):
            start = offset * buffer.dtype.itemsize
            whole = start.is_constant and start.as_int() % ACCESS_BYTES == 0
            return whole and _begins_aligned(buffers, other)
    return True
