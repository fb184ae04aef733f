"""What a GPU has, for kernels that choose by it."""

from __future__ import annotations

from dataclasses import dataclass

COMMON_SHARED_BYTES = 99 * 1024
"""Shared memory of a program that all GPUs since sm_80 have."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A GPU that is taken to be a large one, with what all have, where none is given."""

    shared_bytes: int = COMMON_SHARED_BYTES
    """Shared memory that a program may have."""
    processors: int = 132
    """Multiprocessors, each of which carries programs out."""
    capability: int = 80
    """What it can, by NVIDIA's numbers: 90 for an H100."""
