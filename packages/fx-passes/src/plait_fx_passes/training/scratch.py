"""Which saved tensors a backward may compute in the memory of (:mod:`.consuming`)."""

from __future__ import annotations

from plait_fx_passes.training.costs import tensor_bytes
from plait_fx_passes.training.partition import Partition
from plait_fx_passes.training.places import SavedResult
from plait_fx_passes.training.saved import Held

FEWEST_BYTES = 1 << 20
"""Of saved tensors whose memory is worth looking after."""


def large_and_own(parts: Partition) -> frozenset[int]:
    """Positions of the saved tensors that only the backward sees, and that are large."""
    pairs = enumerate(zip(parts.saved, parts.kept, parts.backward.example_inputs, strict=False))
    return frozenset(
        n
        for n, (saved, kept, value) in pairs
        if isinstance(saved, SavedResult)
        and kept.held is Held.OWN
        and tensor_bytes(value) >= FEWEST_BYTES
    )
