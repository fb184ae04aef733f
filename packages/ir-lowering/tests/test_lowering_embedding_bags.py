"""Bags of rows with padding, and gradients of bags, against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowering_oracle import check, record

from plait_ir_lowering import external_ops, interpret, lower

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def _indices(dtype: torch.dtype = torch.int64) -> torch.Tensor:
    indices = torch.randint(0, 9, (5, 4), dtype=dtype)
    indices[0, 1] = 3
    indices[2] = 3  # nothing but padding
    return indices


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64], ids=str)
def test_bags_with_padding(mode, dtype, kind):
    torch.manual_seed(0)
    rows, indices = torch.randn(9, 6, dtype=dtype), _indices(kind)
    rows[3] = float("nan")
    for weight in (rows, rows.T.contiguous().T):
        graph = check(lambda w, i: F.embedding_bag(i, w, mode=mode, padding_idx=3), weight, indices)
        assert not external_ops(graph)


def test_bags_of_weighted_rows():
    rows, shares = torch.randn(9, 6), torch.randn(5, 4)

    def program(w, i, s):
        return F.embedding_bag(i, w, mode="sum", per_sample_weights=s, padding_idx=3)

    assert not external_ops(check(program, rows, _indices(), shares))


@pytest.mark.parametrize("mode", [0, 1])
def test_what_bags_tell_beside_their_rows(mode):
    def program(w, i):
        offsets = torch.arange(0, 20, 4)
        return aten._embedding_bag(w, i.reshape(-1), offsets, False, mode, False, None, False, 3)

    assert not external_ops(check(program, torch.randn(9, 6), _indices()))


def test_indices_of_no_row_are_told():
    graph = lower(
        record(
            lambda w, i: F.embedding_bag(i, w, mode="sum", padding_idx=0),
            [torch.randn(9, 6), _indices()],
        )
    )
    for wrong in (9, -1):
        with pytest.raises(IndexError):
            interpret(graph, [torch.randn(9, 6), torch.full((5, 4), wrong)])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_other_bags_stay_external(mode):
    rows, offsets = torch.randn(9, 6), torch.tensor([0, 3, 3, 8])
    flat = _indices().reshape(-1)
    assert external_ops(check(lambda w, i: F.embedding_bag(i, w, mode=mode), rows, _indices()))
    uneven = check(lambda w, i, o: F.embedding_bag(i, w, o, mode=mode), rows, flat, offsets)
    assert external_ops(uneven)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("padding", [-1, 3])
def test_gradients_of_bags(padding, dtype):
    owners = torch.tensor([0] * 3 + [2] * 5 + [3] * 12)
    grad, shares = torch.randn(4, 6, dtype=dtype), torch.randn(20, dtype=dtype)
    sizes, flat = torch.tensor([3, 0, 5, 12]), _indices().reshape(-1)

    def gradient(mode):
        def program(g, i, o, n, *s):
            return aten._embedding_bag_dense_backward(g, i, o, n, n, 9, False, mode, *s, padding)

        return program

    for mode in (0, 1):
        graph = check(lambda *given, m=mode: gradient(m)(*given, None), grad, flat, owners, sizes)
        assert not external_ops(graph)
    assert not external_ops(check(gradient(0), grad, flat, owners, sizes, shares))
