"""The generated text of typical kernels, kept as files.

Run with PLAIT_UPDATE_GOLDEN=1 to write them anew, then read the difference.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import triton_kernels as kernels
from triton_attention import Case, kernel_of
from triton_chains import chain_of
from triton_combined import updates
from triton_mixtures import gradient_kernels
from triton_products import grouped, grouped_terms, product, scaled, swiglu, with_bias_and_gelu

from plait_triton_codegen import Tile, TritonOptions, render_kernel
from plait_triton_codegen.kernels import roles

_KEYS, _QUERIES = gradient_kernels(Case("causal", (2, 8, 2, 1000, 1000, 64, 64)))
GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "softmax": (kernels.softmax(16384, 4096, "bf16"), None),
    "softmax_masked": (kernels.softmax(100, 1000), None),
    "softmax_looped": (kernels.softmax(8192, 50257, "bf16"), None),
    "layer_norm": (kernels.layer_norm(4096, 768, "f16"), None),
    "layer_norm_softmax": (kernels.layer_norm(8192, 1024, softmax=True), None),
    "layer_norm_looped": (kernels.layer_norm(64, 5000), TritonOptions(max_persistent=1024)),
    "bias_gelu_residual": (kernels.bias_gelu_residual(16384, 4096, "bf16"), None),
    "swiglu": (kernels.swiglu(16384, 4096, "bf16"), None),
    "column_sum": (kernels.column_sum(16384, 4096, "bf16", parts=16), None),
    "transpose_add": (kernels.transpose_add(4096, 2048, "f32"), None),
    "embedding": (kernels.embedding(30522, 512, 384), None),
    "attention_causal": (kernel_of(Case("causal", (2, 8, 2, 1000, 1000, 64, 64))), None),
    "attention_documents": (
        kernel_of(Case("document", (2, 8, 8, 1000, 1000, 80, 80), spans=True)),
        None,
    ),
    "product": (product(1000, 3072, 768, turned="right"), None),
    "product_bias_gelu": (with_bias_and_gelu(8192, 3072, 768), None),
    "product_batches": (product(512, 512, 64, "f32", batches=96), TritonOptions(tf32=True)),
    "product_swiglu": (swiglu(4096, 8192, 2048), None),
    "product_groups": (grouped(8192, 4096, 2048, 8), None),
    "product_groups_of_terms": (grouped_terms(1024, 4096, 8192, 8), None),
    "product_scaled": (scaled(4096, 4096, 4096), None),
    "mixture_keys": (_KEYS, None),
    "mixture_queries": (_QUERIES, None),
    "embedding_backward": (kernels.embedding_backward(50257, 8192, 768, "bf16"), None),
    "running_sum": (kernels.running_sum(4096, 2048), None),
    "running_sum_looped": (kernels.running_sum(4096, 32768, "bf16"), None),
    "sort": (kernels.sorted_keys(65536, 1000), None),
    "sort_pairs": (kernels.sorted_pairs(65536, 250), None),
    "top_k_pairs": (kernels.sorted_pairs(64, 1000, first=50), None),
    "scatter_max": (kernels.scattered("max", "i32"), None),
    "combined": (updates([768, 2304, 40, 768 * 768, 0]), None),
    "chained": (chain_of("a norm and a softmax"), None),
    "combined_open": (updates(["16*s", 64, "s"], passed="s in 1..1000"), None),
}


@pytest.mark.parametrize("name", CASES)
def test_generated_text_is_as_kept(name: str) -> None:
    kernel, options = CASES[name]
    _compare(name, render_kernel(kernel, options).module)


def test_generated_text_of_a_form_of_products_is_as_kept() -> None:
    tile = Tile(128, 256, 8, False, 3, 64, programs=132, described=True)
    kernel = with_bias_and_gelu(8192, 3072, 768)
    _compare("product_described", render_kernel(kernel, tile=tile).module)
    tile = replace(tile, described_result=True)
    _compare("product_described_result", render_kernel(kernel, tile=tile).module)


def test_generated_text_of_warps_with_roles_is_as_kept(monkeypatch) -> None:
    monkeypatch.setattr(roles, "is_interpreted", lambda: False)
    facts = {"programs": 132, "described": True, "described_result": True}
    tile = Tile(64, 256, 4, False, 5, 64, roles="in turn", **facts)
    kernel = product(8192, 8192, 2048, turned="right")
    _compare("product_roles_in_turn", render_kernel(kernel, tile=tile).module)
    tile = Tile(128, 256, 4, False, 4, 64, roles="together", **facts)
    kernel = with_bias_and_gelu(8000, 3000, 776)
    _compare("product_roles_together", render_kernel(kernel, tile=tile).module)


def test_generated_text_of_descriptors_of_groups_is_as_kept() -> None:
    tile = Tile(128, 256, 8, False, 3, 64, described=True)
    kernel = grouped_terms(1024, 4096, 8192, 8)
    _compare("product_groups_of_terms_described", render_kernel(kernel, tile=tile).module)


def _compare(name: str, text: str) -> None:
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("PLAIT_UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()
