"""Gradients of attention in Triton: score functions, masks, tails, head sizes, element types."""

from __future__ import annotations

import pytest
import torch
from triton_attention import OF_NUMBERS, SCORES, Case
from triton_checks import DEVICE
from triton_mixtures import SUMS, gradient_kernels, gradient_program, with_gradients

from plait_ir_lowering import interpret
from plait_scheduler import parse_program, print_program, verify_program
from plait_triton_codegen import Tile, TritonOptions, UnsupportedKernelError, build, render_kernel
from plait_triton_codegen.kernels.mixtures import MixtureWriter

OF_ONE_NUMBER = [score for score in SCORES if score not in OF_NUMBERS]
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


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("score", OF_ONE_NUMBER)
def test_scores(score: str, dtype: torch.dtype):
    check(Case(score, (2, 2, 2, 150, 140, 16, 16), dtype))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("score", ["plain", "causal", "window", "document", "prefix"])
@pytest.mark.parametrize(("rows", "keys"), [(128, 256), (33, 97), (200, 17), (257, 384)])
def test_sizes(score: str, rows: int, keys: int):
    check(Case(score, (1, 2, 2, rows, keys, 16, 16)))


@pytest.mark.sampled(3)
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


GRADIENTS = {
    "rows": lambda d, case: (d * distances(case)).sum(-1),
    "distances": lambda d, case: table(d, case, (distances(case) + case.sizes[3]).expand(d.shape)),
    "places": lambda d, case: table(d, case, places(case).expand(d.shape)),
    "pairs": lambda d, case: d,
    "pairs of all heads": lambda d, case: d.sum(1),
}
"""Sums of gradients of scores, by the names of `triton_mixtures.SUMS`."""


def distances(case: Case) -> torch.Tensor:
    return torch.arange(case.sizes[4], device=DEVICE) - torch.arange(
        case.sizes[3], device=DEVICE
    ).unsqueeze(1)


def places(case: Case) -> torch.Tensor:
    return with_gradients(case, DEVICE)[0][-1]


def table(d: torch.Tensor, case: Case, at: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(case.sizes[1], case.sizes[3] + case.sizes[4], device=DEVICE).double()
    heads = torch.arange(case.sizes[1], device=DEVICE)[:, None, None].expand(d.shape)
    return made.index_put((heads, at), d, accumulate=True)


def gradients_of_scores(case: Case, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Those of an attention with shared keys, in float64."""
    batch, heads, shared, rows, keys, *_ = case.sizes
    q, k, v, g, sums, delta = (each.double() for each in inputs[:6])
    k, v = (each.repeat_interleave(heads // shared, 1) for each in (k, v))
    scores = q @ k.mT / case.sizes[5] ** 0.5
    if case.score == "causal":
        allowed = distances(case) <= 0
        scores = scores.masked_fill(~allowed, -torch.inf)
    weights = (scores - sums[..., None]).exp()
    found = weights * (g @ v.mT - delta[..., None])
    return found.view(batch, heads, rows, keys)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("sums", [[each] for each in SUMS] + [list(SUMS), ["places", "distances"]])
@pytest.mark.parametrize("score", ["plain", "causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_are_summed_alone(sums: list[str], score: str, dtype: torch.dtype):
    case = Case(score, (2, 4, 2, 70, 90, 16, 32), dtype)
    inputs, wanted = with_gradients(case, DEVICE)
    program = gradient_program(case, DEVICE, sums)
    executable = build(program, options=TritonOptions(fallback=False))
    text = "".join(kernel.text for kernel in executable.kernels)
    assert ("atomic_add" in text) == (not set(sums) <= {"rows", "pairs", "distances"})
    assert ("add_diagonals" in text) == ("distances" in sums)
    found = executable(*inputs)
    d = gradients_of_scores(case, inputs)
    wanted += [GRADIENTS[each](d, case) for each in sums]
    limit = LIMITS[dtype]
    for one, other in zip(found, wanted, strict=True):
        scale = max(float(other.abs().max()), 1.0)
        torch.testing.assert_close(one.double() / scale, other / scale, rtol=limit, atol=limit)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("xblock", "rblock"), [(16, 64), (64, 16), (32, 32), (128, 16)])
def test_diagonals_are_summed_in_blocks_of_any_shape(
    xblock: int, rblock: int, monkeypatch: pytest.MonkeyPatch
):
    tile = Tile(xblock, rblock, 4, False, 2)
    monkeypatch.setattr(MixtureWriter, "_tile", lambda _: tile)
    case = Case("causal", (2, 2, 2, 70, 90, 16, 16), torch.float32)
    inputs, _ = with_gradients(case, DEVICE)
    executable = build(
        gradient_program(case, DEVICE, ["distances"]), options=TritonOptions(fallback=False)
    )
    wanted = GRADIENTS["distances"](gradients_of_scores(case, inputs), case)
    torch.testing.assert_close(executable(*inputs)[-1].double(), wanted, rtol=2e-5, atol=2e-5)


def check_shared(case: Case) -> None:
    """Gradients of keys and values that heads share are sums of eager's for each of them."""
    inputs, wanted = with_gradients(case, DEVICE)
    program = gradient_program(case, DEVICE, grouped=True)
    found = build(program, options=TritonOptions(fallback=False))(*inputs)
    group, limit = case.sizes[1] // case.sizes[2], LIMITS[case.dtype]
    for one, other in zip(found[1:], wanted[1:], strict=True):
        other = other.view(-1, group, *other.shape[1:]).sum(1)
        scale = float(other.abs().max())
        torch.testing.assert_close(one.double() / scale, other / scale, rtol=limit, atol=limit)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("score", ["plain", "causal", "window", "by pairs of heads", "biased"])
@pytest.mark.parametrize("transposed", [False, True])
def test_rows_that_heads_share_are_summed_over_them(score: str, transposed: bool):
    check_shared(Case(score, (2, 6, 2, 150, 90, 16, 32), transposed=transposed))


def test_long_programs_of_shared_rows_begin_first():
    case = Case("causal", (4, 32, 8, 2048, 2048, 64, 64))
    text = render_kernel(gradient_kernels(case, grouped=True)[0]).text
    assert "z = tl.program_id(0) % 32\n    first = (tl.program_id(0) // 32) * XBLOCK" in text


def test_offsets_of_64_bits_are_those_of_heads_too(monkeypatch: pytest.MonkeyPatch):
    case = Case("causal", (80, 4096, 1024, 128, 128, 64, 64))
    text = render_kernel(gradient_kernels(case, grouped=True)[0]).text
    assert "r0 = tl.cast(member, tl.int64)" in text
    monkeypatch.setattr(MixtureWriter, "is_wide", lambda _: True)
    check_shared(Case("causal", (2, 6, 2, 70, 90, 16, 32), torch.float32))


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


@pytest.mark.parametrize("score", OF_ONE_NUMBER)
def test_programs_print_and_are_what_their_graph_means(score: str):
    from triton_mixtures import gradients_of

    case = Case(score, (2, 4, 2, 30, 20, 16, 8), torch.float32)
    program = gradient_program(case)
    verify_program(program)
    assert parse_program(print_program(program)) == program
    both = gradient_program(case, sums=list(SUMS), grouped=True)
    verify_program(both)
    assert parse_program(print_program(both)) == both
    inputs, wanted = with_gradients(case)
    for one, other in zip(interpret(gradients_of(case), inputs), wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)
