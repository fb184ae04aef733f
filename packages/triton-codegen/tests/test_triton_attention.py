"""Attention in Triton: score functions, masks, tails, head sizes, element types, strides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from triton_attention import SCORES, Case, drawn, eager, kernel_of, program_of
from triton_checks import DEVICE, agrees_with_eager

from plait_ir_lowering import parse_graph, verify
from plait_scheduler import Program, SchedulerOptions, schedule
from plait_triton_codegen import Tile, TritonOptions, UnsupportedKernelError, build, render_kernel
from plait_utils import DiskCache

LIMITS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def check(case: Case, inputs: list[torch.Tensor] | None = None) -> torch.Tensor:
    """Build and run an attention; it is eager's in float64 to within rounding."""
    given = drawn(case, DEVICE) if inputs is None else inputs
    executable = build(program_of(case, DEVICE), options=TritonOptions(fallback=False))
    (found,) = executable(*given)
    limit = LIMITS[case.dtype]
    wanted = eager(case, given)
    torch.testing.assert_close(found.double(), wanted, rtol=limit, atol=limit, equal_nan=True)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_scores(score: str, dtype: torch.dtype):
    check(Case(score, (2, 2, 2, 150, 140, 16, 16), dtype))


@pytest.mark.parametrize("score", ["plain", "causal", "window", "document", "prefix"])
@pytest.mark.parametrize(("rows", "keys"), [(128, 256), (33, 97), (1, 70), (200, 17), (257, 384)])
def test_sizes(score: str, rows: int, keys: int):
    check(Case(score, (1, 2, 2, rows, keys, 16, 16)))


@pytest.mark.parametrize(("depth", "width"), [(16, 64), (40, 24), (80, 80), (128, 96), (5, 3)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_head_sizes(depth: int, width: int, dtype: torch.dtype):
    check(Case("causal", (1, 2, 2, 70, 90, depth, width), dtype))


def open_program(score: str) -> Program:
    """An attention with 4 heads, 2 of keys, whose numbers of queries and keys a call gives."""
    t = SCORES[score].format(**Case(score, (2, 4, 2, 77, 99, 16, 16)).values)
    keys = "k.view([2, 2, 2, 16, s1], [32*s1, 16*s1, 0, 1, 16], 0)"
    values = "v.view([2, 2, 2, s1, 16], [32*s1, 16*s1, 0, 16, 1], 0)"
    graph = parse_graph(f"""graph main(s0, s1)
  input q: bf16[2, 4, s0, 16] on {DEVICE}
  input k: bf16[2, 2, s1, 16] on {DEVICE}
  input v: bf16[2, 2, s1, 16] on {DEVICE}
  input bias: f32[4, s0, s1] on {DEVICE}
  define o: bf16[8, s0, 16] on {DEVICE}
    attention i3 for i0: 2, i1: 4, i2: s0, i3: s1 of q, {keys}, {values} else zeros = {t}
  return o
""")
    verify(graph)
    return schedule(graph, options=SchedulerOptions.for_gpu())


@pytest.mark.parametrize("score", ["plain", "window", "biased", "capped causal"])
def test_sizes_that_a_call_gives(score: str):
    executable = build(open_program(score), options=TritonOptions(fallback=False))
    for rows, keys in ((77, 99), (256, 128), (1, 300)):
        case = Case(score, (2, 4, 2, rows, keys, 16, 16))
        inputs = drawn(case, DEVICE)
        (found,) = executable(*inputs[:4])
        torch.testing.assert_close(found.double(), eager(case, inputs), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("score", ["plain", "alibi", "document"])
def test_shared_heads_and_heads_within_rows(score: str):
    check(Case(score, (2, 6, 2, 70, 90, 16, 32), transposed=True))


@pytest.mark.parametrize("score", ["document", "lengths"])
@pytest.mark.parametrize(("rows", "keys"), [(256, 256), (150, 333)])
def test_spans_of_data(score: str, rows: int, keys: int):
    check(Case(score, (3, 2, 1, rows, keys, 16, 16), spans=True))


def test_rows_without_keys():
    zeros = check(Case("late", (1, 2, 2, 150, 140, 16, 16)))
    assert not zeros[:, :46].any()
    nothing = check(Case("late", (1, 2, 2, 150, 140, 16, 16), empty="nan"))
    assert nothing[:, :46].isnan().all()
    assert not nothing[:, 46:].isnan().any()


def test_scores_that_are_not_finite():
    case = Case("masked load", (1, 2, 2, 70, 80, 16, 16))
    inputs = drawn(case, DEVICE)
    bias = inputs[3]
    bias[0, 3, 2], bias[0, 10, 8], bias[1, 20, 19] = torch.nan, torch.inf, -torch.inf
    found = check(case, inputs)
    assert found[0, 3].isnan().all()
    assert found[0, 10].isnan().all()  # of two infinities the difference
    assert not found[1].isnan().any()


@pytest.mark.parametrize("least", [-1e9, -1e30, torch.finfo(torch.float32).min])
def test_rows_whose_keys_are_all_as_low_are_the_mean_of_all_values(least: float, tmp_path: Path):
    def attention(q, k, v, seen):
        scores = (q @ k.transpose(-1, -2)) * 0.25
        return torch.where(seen, scores, least).softmax(-1) @ v

    q, k, v = torch.randn(3, 2, 200, 16).unbind()
    seen = torch.rand(200, 200) < 0.5
    seen[3], seen[70:140] = False, False
    made = agrees_with_eager(DiskCache(tmp_path), attention, q, k, v, seen)
    assert ["attention" in kernel.name for kernel in made.kernels] == [True]


def test_large_scores_do_not_overflow():
    case = Case("plain", (1, 2, 2, 70, 80, 16, 16), torch.float32)
    inputs = drawn(case, DEVICE)
    inputs[0] *= 1e4
    assert check(case, inputs).isfinite().all()


def test_an_index_that_is_out_of_range():
    case = Case("gathered", (1, 2, 2, 70, 80, 16, 16))
    inputs = drawn(case, DEVICE)
    inputs[7][7] = 80
    with pytest.raises(IndexError):
        build(program_of(case, DEVICE))(*inputs)


def test_masks_are_computed_only_where_blocks_are_not_whole():
    text = render(Case("causal", (1, 8, 8, 4096, 4096, 64, 64)))
    whole, partial = text.split("for start in ")[1:]
    assert "tl.where(i2 >= r0" not in whole
    assert "tl.where(i2 >= r0" in partial


def test_a_cap_of_scores_takes_few_operations():
    text = render(Case("capped causal", (1, 8, 8, 4096, 4096, 64, 64)))
    assert "cap = device.bounded_tanh(product, 0.018033688011112044)" in text
    assert "bounded_tanh" not in render(Case("capped", dtype=torch.float32))


def test_what_has_no_kernel_runs_as_torch_operations():
    case = Case("causal", (1, 2, 2, 20, 30, 300, 16), torch.float32)
    with pytest.raises(UnsupportedKernelError, match="rows of 300 elements"):
        render_kernel(kernel_of(case))
    executable = build(program_of(case, DEVICE))
    assert not executable.kernels
    inputs = drawn(case, DEVICE)
    (found,) = executable(*inputs)
    torch.testing.assert_close(found.double(), eager(case, inputs), rtol=2e-5, atol=2e-5)


def test_a_window_reads_no_keys_before_it():
    text = render(Case("window", (1, 8, 8, 4096, 4096, 64, 64)))
    assert "low = tl.maximum(first - 49, 0) // RBLOCK * RBLOCK" in text


@pytest.mark.parametrize("xblock", [16, 64])
def test_other_tiles(xblock: int):
    kernel = kernel_of(Case("causal", (1, 2, 2, 70, 80, 16, 16)))
    source = render_kernel(kernel, tile=Tile(xblock, 32, 4, False))
    assert source.tile.xblock == xblock
    assert source.blocks[1][1] == xblock


def render(case: Case) -> str:
    return render_kernel(kernel_of(case)).text
