"""What a caller may choose about scheduling."""

from __future__ import annotations

from typing import Any

from plait_utils import Settings, dataclass, setting


@dataclass(frozen=True)
class SchedulerOptions(Settings):
    """Switches and limits of the scheduler; each optimization can be turned off alone."""

    fuse_pointwise: bool = setting(True, "join pointwise definitions over the same points")
    fuse_reductions: bool = setting(
        True, "join reductions over the same rows, and pointwise definitions around them"
    )
    fuse_siblings: bool = setting(True, "join kernels that read a buffer at the same points")
    inline_producers: bool = setting(
        True, "recompute cheap pointwise definitions where they are read at other coordinates"
    )
    split_reductions: bool = setting(
        True, "compute reductions to few elements in two stages, so that they run in parallel"
    )
    join_products: bool = setting(
        True, "let matrix products write to their parts of what they are concatenated to, on CPUs"
    )
    pad_products: bool = setting(
        True,
        "leave room behind the rows of matrices that products write or read, where that is fast",
    )
    slice_calls: bool = setting(
        True,
        "make results of calls slice by slice, where these would be fresh memory in each call, or "
        "have rows that are slow to write",
    )
    fuse_attention: bool = setting(
        True, "compute products whose softmax weights another product block by block"
    )
    attention_operands: bool = setting(
        False,
        "let attention read what its operands are copies of: other strides, elements of 16 bits",
    )
    attention_spans: bool = setting(
        False, "find the keys that masks of data leave to each row before an attention reads keys"
    )
    attention_sums: bool = setting(
        False,
        "let attention give the logarithms of the sums of its rows' exponentials, for gradients",
    )
    fuse_mixtures: bool = setting(
        False,
        "compute products of what is computed point by point of other products, as gradients of "
        "attention are, block by block",
    )
    max_head_size: int = setting(
        -1, "most elements of a query or a value of an attention in one kernel; -1: any number"
    )
    kernel_products: str = setting(
        "",
        "results of products of matrices that are loops and not calls, so that they are computed "
        "with what surrounds them: names of buffers, separated by commas, or * for all; kernels "
        "of GPUs multiply matrices block by block",
    )
    few_rows: int = setting(
        0,
        "where kernel_products names none, products of matrices of 16 bits with so many rows and "
        "small weights are loops, and not calls: kernels of GPUs are faster there",
    )
    odd_columns: bool = setting(
        False,
        "where kernel_products names none, large products of matrices of 16 bits are loops whose "
        "rows begin at no multiple of 16 bytes: calls take several times as long there",
    )
    point_convolutions: bool = setting(
        False,
        "where kernel_products names none, convolutions of 16 bits by windows of one point are "
        "loops, if pointwise definitions alone read what they make: kernels of GPUs join these",
    )
    max_sums: int = setting(-1, "most products of matrices that one kernel sums up; -1: any number")
    keep_wide: bool = setting(
        True, "compute chains of bf16 and f16 operators in f32, rounding what is stored"
    )
    simplify_loops: bool = setting(
        True, "merge, split and reorder loop variables so that accesses become affine"
    )
    reuse_memory: bool = setting(
        True, "let temporaries whose lifetimes do not meet share arena memory"
    )
    reuse_in_place: bool = setting(True, "let a kernel overwrite a temporary that dies in it")
    hand_out_bytes: int = setting(
        1 << 16,
        "fewest bytes of a result that may take over a temporary",
    )
    write_in_place: bool = setting(
        True, "compute what is written back to an input right in its memory, where that is safe"
    )
    run_together: bool = setting(
        True, "let neighbouring kernels that need nothing of each other run at the same time"
    )

    combine_launches: bool = setting(
        False,
        "compute by one launch what kernels of equal code do that may run at the same time: a GPU "
        "takes longer to launch a small kernel than to run it",
    )

    chain_launches: bool = setting(
        False,
        "compute by one launch, of one program, what small kernels do one behind the other: a GPU "
        "takes longer to launch them than to run them",
    )

    max_params: int = setting(24, "most parameters of one kernel")
    max_operations: int = setting(256, "most scalar operations of one kernel")
    max_members: int = setting(128, "most kernels that one launch combines")
    max_arguments: int = setting(
        500,
        "most parameters and sizes of a combined kernel: a launch of a GPU passes 4 KB, each takes "
        "8 bytes, and some are the host's",
    )
    most_combined_points: int = setting(
        1 << 22,
        "kernels of more points are not combined, since they run longer than a launch takes",
    )
    max_links: int = setting(8, "most kernels that one launch runs one behind the other")
    most_chained_bytes: int = setting(
        1 << 15,
        "kernels that move more bytes are not chained, since many programs are faster than one: an "
        "H200 took 6.2 us for four softmaxes of 32 KB in a chain, 6.8 apart, of 64 KB 11.3 and 6.9",
    )
    most_chained_operations: int = setting(
        9 << 13,
        "kernels of more operations are not chained: an H200 took 12.1 us for four products of 8, "
        "64 and 64 in a chain, 16.6 apart, of 64, 32 and 32 12.5 and 10.4",
    )
    most_waiting_bytes: int = setting(
        1 << 24,
        "most bytes of temporaries that kernels read which wait for others to be combined with",
    )
    max_row_bytes: int = setting(
        1 << 22, "most bytes that one intermediate value of a reduction's row may take"
    )
    most_result_bytes: int = setting(
        3 << 23,
        "most bytes of a result that the C library is to keep for the next call: it gives what is "
        "larger than 32 MB back to the system, and keeps twice as much as the largest",
    )
    slice_bytes: int = setting(1 << 24, "bytes that a slice of a call's result aims for")
    min_parallel_points: int = setting(
        8, "a reduction with fewer outer points than this counts as badly parallel"
    )
    split_points: int = setting(64, "outer points that a split reduction's first stage aims for")
    split_goals: str = setting(
        "",
        "what single reductions aim for instead of split_points, as name=points, separated by "
        "commas; with 0 they stay one stage",
    )
    min_split_elements: int = setting(
        1 << 16, "reductions over fewer elements in all are not worth splitting"
    )
    min_split_row: int = setting(
        0, "elements that one task reduces which take longer than it does to start a second kernel"
    )
    longest_chunk: int = setting(
        0,
        "most elements of a chunk from whose mean squared deviations are taken, so that it is read "
        "once; 0 takes all from the mean of all, and reads them again",
    )
    inline_operations: int = setting(
        12, "most cheap operations of a producer that is recomputed at several places"
    )
    sibling_window: int = setting(
        64, "how far apart, in definitions, kernels may be that are joined as siblings"
    )
    search_limit: int = setting(4096, "most kernels visited to prove that a fusion makes no cycle")
    fuel: int = setting(
        -1, "how many decisions may be taken, -1 for all; see `first_wrong_decision`"
    )
    verify: bool = setting(
        True, "check the finished program", env="PLAIT_VERIFY", in_cache_key=False
    )

    @classmethod
    def for_gpu(cls, processors: int = 132) -> SchedulerOptions:
        """Limits for a device with many processors, each of which takes outer points."""
        return cls(**gpu_limits(processors))


def gpu_limits(processors: int = 132) -> dict[str, Any]:
    """The settings that are others on a device with many processors."""
    return {
        "min_parallel_points": processors // 2,
        "split_points": 4 * processors,
        "min_split_elements": 1 << 15,
        "min_split_row": 1 << 14,
        "longest_chunk": 1 << 14,
        "run_together": False,
        "combine_launches": True,
        "chain_launches": True,
        "attention_operands": True,
        "attention_spans": True,
        "attention_sums": True,
        "fuse_mixtures": True,
        "max_head_size": 256,
        "few_rows": 32,
        "odd_columns": True,
        "point_convolutions": True,
        "max_sums": 2,
        "most_result_bytes": 1 << 40,
        "slice_bytes": 1 << 27,
    }
