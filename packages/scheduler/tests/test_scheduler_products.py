"""Sums of products in the Python program: as matrices, not with all products in memory."""

from __future__ import annotations

import pytest
import torch

from plait_scheduler.host import summed_products

M, N, K = 5, 7, 11


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((M, 1, K), (1, N, K)),
        ((M, N, K), (1, 1, K)),
        ((M, 1, 1), (1, N, K)),
        ((1, 1, K), (1, N, 1)),
    ],
)
def test_sums_are_those_of_all_products(x, y):
    left, right = torch.randn(x), torch.randn(y)
    found = summed_products(left, right, (M, N, K), 1, torch.float32)
    expected = (left * right).expand(M, N, K).sum(-1)
    torch.testing.assert_close(found, expected)
    assert found.shape == (M, N)


def test_what_is_the_same_all_along_is_summed_as_often():
    left, right = torch.randn(M, 1, 1), torch.randn(1, N, 1)
    found = summed_products(left, right, (M, N, K), 1, torch.float32)
    torch.testing.assert_close(found, (left * right)[..., 0] * K)


def test_several_dimensions_are_summed():
    left, right = torch.randn(M, 1, 2, K), torch.randn(1, N, 2, K)
    found = summed_products(left, right, (M, N, 2, K), 2, torch.float32)
    torch.testing.assert_close(found, (left * right).sum((-1, -2)))
