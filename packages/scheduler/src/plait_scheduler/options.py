"""What a caller may choose about scheduling.

All of it but `verify` changes generated code, and belongs to a cache key.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Switches and limits of the scheduler; each optimization can be turned off alone."""

    fuse_pointwise: bool = True
    """Join pointwise definitions over the same points into one kernel."""
    fuse_reductions: bool = True
    """Join reductions over the same rows, and pointwise definitions around them."""
    fuse_siblings: bool = True
    """Join kernels that read the same buffer at the same points."""
    inline_producers: bool = True
    """Recompute cheap pointwise definitions where they are read at other coordinates."""
    split_reductions: bool = True
    """Compute a reduction to few elements in two stages, so that it runs in parallel."""
    simplify_loops: bool = True
    """Merge, split and reorder loop variables so that accesses become affine."""
    reuse_memory: bool = True
    """Let temporaries whose lifetimes do not meet share arena memory."""
    reuse_in_place: bool = True
    """Let a kernel overwrite a temporary that dies in it."""

    max_params: int = 24
    """Most parameters of one kernel."""
    max_operations: int = 256
    """Most scalar operations of one kernel."""
    max_row_bytes: int = 1 << 22
    """Most bytes of one row of a reduction that intermediate values of it may take."""
    min_parallel_points: int = 8
    """A reduction with fewer outer points than this counts as badly parallel."""
    split_points: int = 64
    """Outer points that the first stage of a split reduction aims for."""
    min_split_elements: int = 1 << 16
    """Reductions over fewer elements in all are not worth splitting."""
    inline_operations: int = 12
    """Most cheap operations of a producer that is recomputed at several places."""
    sibling_window: int = 64
    """How far apart, in definitions, kernels may be that are joined as siblings."""
    search_limit: int = 4096
    """Most kernels visited to prove that a fusion makes no cycle."""
    verify: bool = True
    """Check the finished program; see `verify_program`."""

    @classmethod
    def for_gpu(cls, processors: int = 132) -> SchedulerOptions:
        """Limits for a device with many processors, each of which takes outer points."""
        return cls(
            min_parallel_points=processors // 2,
            split_points=4 * processors,
            min_split_elements=1 << 15,
        )
