"""Gradients of attention in Triton: score functions, masks, tails, head sizes, element types."""

from __future__ import annotations

import pytest
import torch
from triton_attention import SCORES, Case
from triton_checks import DEVICE
from triton_mixtures import gradient_kernels, gradient_program, with_gradients

from plait_ir_lowering import interpret
from plait_scheduler import parse_program, print_program, verify_program
from plait_triton_codegen import Tile, TritonOptions, UnsupportedKernelError, build, render_kernel

LIMITS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def check(case: Case) -> list[torch.Tensor]:
    """Build and run the gradients of an attention; they are eager's in float64 to within rounding,
    and nothing is added in an order that may change."""
    inputs, wanted = with_gradients(case, DEVICE)
    executable = build(gradient_program(case, DEVICE), options=TritonOptions(fallback=False))
    assert all("atomic" not in kernel.text for kernel in executable.kernels)
    found = executable(*inputs)
    limit = LIMITS[case.dtype]
    for one, other in zip(found, wanted, strict=True):
        scale = max(float(other.abs().max()), 1.0)
        torch.testing.assert_close(one.double() / scale, other / scale, rtol=limit, atol=limit)
    return found


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_scores(score: str, dtype: torch.dtype):
    check(Case(score, (2, 2, 2, 150, 140, 16, 16), dtype))


@pytest.mark.parametrize("score", ["plain", "causal", "window", "document", "prefix"])
@pytest.mark.parametrize(("rows", "keys"), [(128, 256), (33, 97), (200, 17), (257, 384)])
def test_sizes(score: str, rows: int, keys: int):
    check(Case(score, (1, 2, 2, rows, keys, 16, 16)))


@pytest.mark.parametrize(("depth", "width"), [(16, 64), (40, 24), (128, 96), (5, 3), (256, 256)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_head_sizes(depth: int, width: int, dtype: torch.dtype):
    check(Case("causal", (1, 2, 2, 70, 90, depth, width), dtype))


@pytest.mark.parametrize("score", ["plain", "alibi", "document"])
def test_shared_heads_and_heads_within_rows(score: str):
    check(Case(score, (2, 6, 2, 70, 90, 16, 32), transposed=True))


def test_rows_without_keys():
    queries, _, _ = check(Case("late", (1, 2, 2, 150, 140, 16, 16)))
    assert not queries[:, :46].any()


@pytest.mark.parametrize(("xblock", "rblock"), [(16, 64), (64, 16)])
def test_other_tiles(xblock: int, rblock: int):
    for kernel in gradient_kernels(Case("causal", (1, 2, 2, 70, 80, 16, 16))):
        source = render_kernel(kernel, tile=Tile(xblock, rblock, 4, False, 2))
        assert source.tile.xblock == xblock


def test_masks_are_computed_only_where_blocks_are_not_whole():
    for kernel in gradient_kernels(Case("causal", (1, 8, 8, 4096, 4096, 64, 64))):
        whole, partial = render_kernel(kernel).text.split("    for ")[1:]
        assert ">= i" not in whole
        assert ">= i" in partial or ">= r0" in partial


def test_a_window_reads_no_queries_outside_of_it():
    keys, queries = gradient_kernels(Case("window", (1, 8, 8, 4096, 4096, 64, 64)))
    assert "low = tl.maximum(first, 0) // RBLOCK * RBLOCK" in render_kernel(keys).text
    assert "low = tl.maximum(first - 49, 0) // RBLOCK * RBLOCK" in render_kernel(queries).text


def test_factors_are_read_once():
    keys, queries = (render_kernel(k).text for k in gradient_kernels(Case()))
    assert keys.count("tl.trans(columns") == 2  # queries, and gradients of the result
    assert queries.count("tl.trans(columns") == 1


def test_what_has_no_kernel_runs_as_torch_operations():
    case = Case("causal", (1, 2, 2, 20, 30, 300, 16), torch.float32)
    with pytest.raises(UnsupportedKernelError, match="rows of 300 elements"):
        render_kernel(gradient_kernels(case)[0])
    inputs, wanted = with_gradients(case, DEVICE)
    executable = build(gradient_program(case, DEVICE))
    assert not executable.kernels
    for one, other in zip(executable(*inputs), wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("score", SCORES)
def test_programs_print_and_are_what_their_graph_means(score: str):
    from triton_mixtures import gradients_of

    case = Case(score, (2, 4, 2, 30, 20, 16, 8), torch.float32)
    program = gradient_program(case)
    verify_program(program)
    assert parse_program(print_program(program)) == program
    inputs, wanted = with_gradients(case)
    for one, other in zip(interpret(gradients_of(case), inputs), wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)
