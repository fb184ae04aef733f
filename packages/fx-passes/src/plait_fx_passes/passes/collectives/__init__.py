"""Passes over functional collectives: where they start and end, and which are made together.

All of them decide by the graph alone, so processes that run the same passes over graphs of the same
calls issue the same collectives in the same order. Nothing is dropped, and nothing sent twice.
"""

from __future__ import annotations

from plait_fx_passes.passes.base import Pass
from plait_fx_passes.passes.collectives.buckets import bucket_collectives
from plait_fx_passes.passes.collectives.calls import communicates
from plait_fx_passes.passes.collectives.chunks import chunk_products
from plait_fx_passes.passes.collectives.operands import OPERANDS_FIRST
from plait_fx_passes.passes.collectives.parts import (
    CollectiveCall,
    CollectivePart,
    CollectiveParts,
    collective_parts,
    parts_runner,
)
from plait_fx_passes.passes.collectives.starts import early_starts
from plait_fx_passes.passes.collectives.waits import LATE_WAITS

__all__ = [
    "BUCKET_BYTES",
    "GATHER_BYTES",
    "LATE_WAITS",
    "OPERANDS_FIRST",
    "CollectiveCall",
    "CollectivePart",
    "CollectiveParts",
    "bucket_collectives",
    "chunk_products",
    "collective_parts",
    "collective_passes",
    "communicates",
    "early_starts",
    "parts_runner",
]

BUCKET_BYTES = 25 * 2**20
"""How large reductions are joined: as large as those of DistributedDataParallel."""

GATHER_BYTES = 2 * 2**20
"""How large gathers are joined. Over gloo, four processes of one machine gather 32 times 4 KiB each
in 5 ms together and 96 ms one by one, 32 times 64 KiB in 31 and 92, but 16 times 1 MiB in 434 and
87: the backend copies what is joined into one buffer and back."""


def collective_passes(
    *,
    bucket_bytes: int = BUCKET_BYTES,
    gather_bytes: int = GATHER_BYTES,
    in_flight_bytes: int = 2 * BUCKET_BYTES,
    in_order: bool = False,
    chunks: int = 1,
) -> tuple[Pass, ...]:
    """The passes for graphs with collectives of several processes, to be run behind others.

    Args:
        bucket_bytes: how many bytes of operands all-reduces and reduce-scatters are joined to.
        gather_bytes: the same for all-gathers.
        in_flight_bytes: how many bytes of results of all-gathers may be on their way before
            their turn.
        in_order: whether collectives stay in the order that they are in, each by itself, so that
            processes whose graphs differ still meet: neighbours in one may have a call of another
            group between them in the other. Without it the graphs must have the same calls of the
            same sizes on all processes.
        chunks: into how many parts a large product is cut that a gather comes before, or a
            reduce-scatter behind; 1 for none. On a CPU, over gloo, that does not win.
    """
    cut = () if chunks == 1 else (chunk_products(chunks),)
    joined = () if in_order else (bucket_collectives(bucket_bytes, gather_bytes),)
    return (
        LATE_WAITS,
        *joined,
        *cut,
        OPERANDS_FIRST,
        early_starts(in_flight_bytes, in_order=in_order),
    )
