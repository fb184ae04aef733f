"""Which products of matrices are loops, by sizes and by how the factors lie in memory."""

from __future__ import annotations

import pytest
import torch
from lowering_oracle import check, record

from plait_ir_lowering import LoweringOptions, external_ops, lower


def _calls(a: torch.Tensor, b: torch.Tensor, options: LoweringOptions | None = None) -> int:
    graph = record(lambda a, b: a @ b, [a, b])
    return sum(external_ops(lower(graph, options=options or LoweringOptions())).values())


def _weight(n: int, k: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A linear layer's, transposed."""
    return torch.randn(n, k).to(dtype).T


@pytest.mark.parametrize(
    ("rows", "n", "k", "calls"),
    [
        (1, 4096, 4096, 0),
        (8, 768, 768, 0),
        (9, 768, 768, 1),
        (16, 256, 256, 0),
        (17, 256, 256, 1),
        (32, 128, 128, 0),
        (64, 64, 64, 0),
        (65, 64, 64, 1),
    ],
)
def test_few_rows_and_small_products_are_loops(rows, n, k, calls):
    x = torch.empty(rows, k)
    assert _calls(x, _weight(n, k)) == calls
    assert _calls(x, torch.empty(k, n)) == calls


@pytest.mark.parametrize(
    ("dtype", "calls"),
    [(torch.float64, 0), (torch.bfloat16, 1), (torch.float16, 1), (torch.complex64, 1)],
)
def test_limits_are_by_type(dtype, calls):
    assert _calls(torch.randn(8, 512).to(dtype), _weight(512, 512, dtype)) == calls


def test_factors_that_lie_otherwise_are_left_to_a_call():
    x = torch.randn(4, 200)
    assert _calls(x, torch.randn(200, 600)[:, ::2]) == 1
    assert _calls(x, torch.randn(300, 400)[:, ::2].T) == 1
    assert _calls(x, torch.randn(1).expand(200, 300)) == 1


def test_a_wide_matrix_of_few_rows_is_left_to_a_call():
    assert _calls(torch.randn(1, 64), torch.randn(64, 50_000)) == 1
    assert _calls(torch.randn(1, 64), _weight(50_000, 64)) == 0


def test_batches_of_many_rows_stay_calls_that_may_be_an_attention():
    assert _calls(torch.randn(4, 7, 128), torch.randn(4, 128, 128)) == 0
    assert _calls(torch.randn(4, 8, 128), torch.randn(4, 128, 128)) == 1


def test_it_can_be_switched_off():
    x, w = torch.randn(8, 300), _weight(300, 300)
    assert _calls(x, w, LoweringOptions(own_products=False)) == 1
    assert _calls(x, w) == 0


def test_where_bits_are_promised_products_are_calls():
    x, w = torch.randn(2, 300), _weight(300, 300)
    assert _calls(x, w, LoweringOptions(exact=True)) == 1


@pytest.mark.parametrize("add", ["addmm", "baddbmm"])
def test_sums_with_products_are_eager_s(add):
    a, b, c = torch.randn(2, 5, 90), torch.randn(2, 90, 200), torch.randn(2, 5, 200)
    if add == "addmm":
        a, b, c = a[0], b[0], c[0, 0]
    run = getattr(torch, add)
    graph = check(lambda c, a, b: run(c, a, b, beta=0.5, alpha=2.0), c, a, b, tolerance=1e-4)
    assert not external_ops(graph)


@pytest.mark.parametrize(("rows", "calls"), [(1, 1), (2, 0), (8, 0), (9, 1)])
def test_bytes_are_loops_where_a_machine_adds_four_at_once(rows, calls, monkeypatch):
    x, w = (torch.randint(-9, 9, (n, 512)).to(torch.int8) for n in (rows, 300))
    for has_vnni in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda has=has_vnni: has)
        graph = lower(record(lambda x, w: torch._int_mm(x, w.T), [x, w]))
        assert sum(external_ops(graph).values()) == (calls if has_vnni else 1)
    check(lambda x, w: torch._int_mm(x, w.T), x, w)


@pytest.mark.parametrize(
    ("dtype", "calls", "tolerance"),
    [(torch.float32, 0, 1e-4), (torch.float16, 0, 2e-2), (torch.bfloat16, 1, 5e-2)],
)
def test_a_weight_of_bytes_with_scales_is_multiplied_in_loops(dtype, calls, tolerance):
    x, scales = torch.randn(3, 64).to(dtype), torch.rand(40).to(dtype) / 10
    weight = torch.randint(-128, 128, (40, 64), dtype=torch.int8)
    run = torch.ops.aten._weight_int8pack_mm.default
    graph = check(run, x, weight, scales, tolerance=tolerance)
    assert sum(external_ops(graph).values()) == calls
