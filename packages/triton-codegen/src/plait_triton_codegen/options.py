"""What a caller may choose about Triton kernels."""

from __future__ import annotations

from plait_utils import Settings, dataclass, setting


@dataclass(frozen=True)
class TritonOptions(Settings):
    """Switches and limits of Triton code generation."""

    fast_math: bool = setting(
        True,
        "in kernels whose results are all f16 or bf16, divide and take exp, tanh, sigmoid and "
        "GELU's erf in f32 to within a few ulps, which the final rounding hides",
        env="PLAIT_TRITON_FAST_MATH",
    )
    max_persistent: int = setting(
        32768, "the longest row that is kept in registers as a whole, in elements"
    )
    check_indices: bool = setting(
        True,
        "raise IndexError for indices out of bounds, which waits for the kernels that read "
        "with indices; if off, such an index is clamped",
        env="PLAIT_TRITON_CHECK_INDICES",
    )
    tf32: bool = setting(
        False, "multiply f32 matrices in kernels by their first 11 bits, as tensor cores do"
    )
    autotune: bool = setting(
        False,
        "time the blocks that each kernel can be computed in, on its own shapes or those at hand, "
        "and keep what is fastest, which the disk cache remembers",
        env="PLAIT_AUTOTUNE",
    )
    fallback: bool = setting(True, "run a kernel that Triton cannot express with torch operations")
    native_host: bool = setting(
        True,
        "launch kernels on a GPU from C++, through the CUDA driver; if off, from Python",
        env="PLAIT_TRITON_NATIVE_HOST",
    )
    cuda_graphs: bool = setting(
        False,
        "record what a call launches as a CUDA graph, where kernels are launched from C++",
        env="PLAIT_CUDA_GRAPHS",
        in_cache_key=False,
    )
    overlap: bool = setting(
        True,
        "launch a kernel while the one before it ends, on GPUs of capability 9.0",
        env="PLAIT_TRITON_OVERLAP",
    )
    check_launches: bool = setting(
        False,
        "to find errors of a GPU: wait for it after each kernel and call, so that the error names "
        "the one that failed and the user's lines; nothing is recorded as a CUDA graph",
        env="PLAIT_CHECK_LAUNCHES",
    )
    workers: int = setting(
        -1,
        "how many processes compile kernels side by side; -1 for as many as the process may use "
        "processors, 0 for none but the process itself",
        env="PLAIT_TRITON_WORKERS",
        in_cache_key=False,
    )
