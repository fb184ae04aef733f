"""Kernels of every form whose tiles are chosen by timing, that the tests share."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton_kernels as kernels
from triton_attention import Case, kernel_of
from triton_combined import TAKEN, TURNED, updates
from triton_mixtures import gradient_kernels

from plait_scheduler import AnyKernel, parse_kernel
from plait_triton_codegen import TritonOptions
from plait_triton_codegen.kernels import Chip

CROWDED = Chip(227 * 1024, processors=1)
"""On which few programs are many."""
LOOPED = TritonOptions(max_persistent=256)


@dataclass(frozen=True)
class Chosen:
    """A kernel, and where its tiles are chosen."""

    kernel: AnyKernel
    options: TritonOptions = field(default_factory=TritonOptions)
    chip: Chip = field(default_factory=Chip)
    sizes: dict[str, int] = field(default_factory=dict)


SMALL_TURNED = TURNED.replace("1000", "50").replace("768", "40")
SMALL: dict[str, Chosen] = {
    "pointwise": Chosen(kernels.swiglu(6, 1000)),
    "pointwise bf16": Chosen(kernels.bias_gelu_residual(7, 333, "bf16")),
    "transposing": Chosen(kernels.transpose_add(70, 90)),
    "softmax": Chosen(kernels.softmax(6, 1500)),
    "softmax bf16": Chosen(kernels.softmax(6, 1024, "bf16")),
    "softmax looped": Chosen(kernels.softmax(3, 2100), LOOPED),
    "softmax of programs that stay": Chosen(kernels.softmax(9, 17000, "bf16"), chip=CROWDED),
    "layer norm": Chosen(kernels.layer_norm(5, 700)),
    "layer norm looped": Chosen(kernels.layer_norm(5, 2100), LOOPED),
    "add and rms norm": Chosen(kernels.add_rms_norm(3, 4096, "bf16")),
    "loss": Chosen(kernels.cross_entropy(3, 17000)),
    "column sum": Chosen(kernels.column_sum(900, 40)),
    "column sum at once": Chosen(kernels.column_sum(40, 50, "bf16")),
    "column sum of wide rows": Chosen(kernels.column_sum(200, 512, "bf16"), chip=CROWDED),
    "running sum": Chosen(kernels.running_sum(5, 700)),
    "running sum looped": Chosen(kernels.running_sum(2, 9000)),
    "running maximum": Chosen(kernels.running_maximum(3, 300)),
    "embedding": Chosen(kernels.embedding(50, 60, 40)),
    "embedding backward": Chosen(kernels.embedding_backward(50, 60, 40)),
    "scattered": Chosen(kernels.scattered("add", "f32")),
    "sort": Chosen(kernels.sorted_keys(10, 100)),
    "sort down columns": Chosen(kernels.sorted_pairs(40, 60, down=True)),
    "sizes at run time": Chosen(kernels.dynamic(), sizes={"s0": 5, "s1": 5000}),
    "combined": Chosen(updates((64, 1000, 3))),
    "combined of open sizes": Chosen(
        updates(["16*s", 64, "32*s"], passed="s in 1..100"), sizes={"s": 9}
    ),
    "combined transposes": Chosen(parse_kernel(SMALL_TURNED)),
    "combined indices": Chosen(parse_kernel(TAKEN)),
    "attention": Chosen(kernel_of(Case("causal", (1, 2, 2, 100, 100, 32, 32)))),
    "attention f32": Chosen(kernel_of(Case("alibi", (1, 2, 1, 40, 70, 16, 32), torch.float32))),
}
"""Small enough for the interpreter."""
for _of, _kernel in zip(
    ("keys", "queries"),
    gradient_kernels(Case("causal", (1, 2, 2, 70, 70, 32, 32), torch.float32)),
    strict=True,
):
    SMALL[f"gradients of {_of}"] = Chosen(_kernel)

H200 = Chip(227 * 1024, 132, 90)
LARGE: dict[str, AnyKernel] = {
    "swiglu": kernels.swiglu(16384, 4096, "bf16"),
    "transpose": kernels.transpose_add(4096, 4096, "bf16"),
    "softmax": kernels.softmax(16384, 4096, "bf16"),
    "softmax of long rows": kernels.softmax(8192, 32768, "bf16"),
    "column sum": kernels.column_sum(16384, 4096, "bf16", parts=16),
    "running sum": kernels.running_sum(4096, 4096),
    "loss": kernels.cross_entropy(8192, 50257),
    "attention": kernel_of(Case("causal", (8, 12, 12, 1024, 1024, 64, 64))),
}
"""As large as kernels of GPUs are, which compilers see."""
