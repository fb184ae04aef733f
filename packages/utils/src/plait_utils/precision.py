"""How torch multiplies matrices of float32."""

from __future__ import annotations

import torch


def is_tf32_allowed() -> bool:
    """Whether torch's products of float32 on GPUs may take the first 11 bits of their factors, as
    `torch.set_float32_matmul_precision` and `torch.backends.cuda.matmul` say."""
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        # The public readers raise where both interfaces of torch were used to set it.
        return bool(torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32")
    return bool(torch._C._get_cublas_allow_tf32())
