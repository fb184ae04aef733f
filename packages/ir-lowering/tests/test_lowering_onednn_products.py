"""Which products of matrices are calls of oneDNN, and that they are those of eager."""

from __future__ import annotations

import pytest
import torch
from lowering_oracle import record

from plait_ir_lowering import LoweringOptions, external_ops, lower

ONEDNN = LoweringOptions(onednn_products=True)


def _called(function, *inputs: torch.Tensor, options: LoweringOptions = ONEDNN) -> list[str]:
    return list(external_ops(lower(record(function, list(inputs)), options=options)))


def _is_onednn(function, *inputs: torch.Tensor, options: LoweringOptions = ONEDNN) -> bool:
    (called,) = _called(function, *inputs, options=options)
    return "_linear_pointwise" in called


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


X, W = torch.randn(256, 512), torch.randn(512, 1024)


def test_large_products_of_dense_matrices_are():
    assert _is_onednn(_product, X, W)
    assert _is_onednn(_product, X, torch.randn(1024, 512).T)
    assert _is_onednn(lambda a, b: (a + 1) @ (b * 2), X, W)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (X[:, :500], W[:500]),
        (X[:63], W),
        (X.T.contiguous().T, W),
        (X, torch.randn(512, 2048)[:, ::2]),
        (X.double(), W.double()),
        (X.bfloat16(), W.bfloat16()),
    ],
)
def test_others_stay_calls_of_aten(a, b):
    assert _called(_product, a, b) == ["aten::mm.out"]


def test_rows_to_add_go_with_the_call_where_no_loop_can_add_them():
    bias = torch.randn(1024)
    call = torch.nn.functional.linear
    assert _is_onednn(call, X, W.T.contiguous(), bias)
    assert _is_onednn(lambda *given: call(*given).relu(), X, W.T.contiguous(), bias)
    assert _called(lambda a, b, c: torch.addmm(c, a, b, beta=2), X, W, bias) == ["aten::addmm.out"]
    assert _called(lambda a, b: torch.addmm(a[:, :1], a, b), X, W) == ["aten::addmm.out"]


def test_where_bits_are_promised_or_precision_is_not_they_are_not():
    assert not _is_onednn(_product, X, W, options=LoweringOptions(exact=True))
    assert not _is_onednn(_product, X, W, options=LoweringOptions(onednn_products=False))
    torch.set_float32_matmul_precision("medium")
    try:
        assert not _is_onednn(_product, X, W)
    finally:
        torch.set_float32_matmul_precision("highest")
