"""Large products that oneDNN multiplies have eager's values, layout and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import plait
from plait_ir_lowering.rules import onednn_products
from plait_utils import processor_vendor


@pytest.fixture(autouse=True)
def wanted(monkeypatch):
    """As on processors that it is faster on."""
    monkeypatch.setattr(onednn_products, "_VENDORS", frozenset({processor_vendor()}))
    monkeypatch.setenv("PLAIT_WARM_START", "0")


def programs():
    generator = torch.Generator().manual_seed(3)

    def drawn(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator)

    x, w, b = drawn(256, 512), drawn(1024, 512), drawn(1024)
    return {
        "linear": (F.linear, x, w, b),
        "turned": (lambda x, w, b: F.linear(x, w, b).view(2, 128, 1024).transpose(1, 2), x, w, b),
        "matrix": (lambda x, w: F.gelu(x @ w), x, w.T.contiguous()),
        "of three dimensions": (lambda x, w, b: F.linear(x, w, b), x.view(4, 64, 512), w, b),
    }


@pytest.mark.parametrize("name", programs())
def test_values_are_as_near_to_doubles_as_sums_of_floats_are(name):
    program, *inputs = programs()[name]
    compiled = plait.compile(program)
    with torch.no_grad():
        found, wanted = compiled(*inputs), program(*inputs)
        exact = program(*(each.double() for each in inputs))
    assert found.stride() == wanted.stride()
    assert (found - exact).abs().max() < 1e-3  # of sums of 512 products of about 20
    assert "mkldnn::_linear_pointwise" in str(plait.report(compiled))


def test_gradients_are_eagers():
    _, x, w, b = programs()["linear"]

    def program(x, w, b):
        return F.gelu(F.linear(x, w, b)).sum()

    def gradients(function):
        leaves = [each.clone().requires_grad_() for each in (x, w, b)]
        function(*leaves).backward()
        return [leaf.grad for leaf in leaves]

    for found, wanted in zip(gradients(plait.compile(program)), gradients(program), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


def test_what_is_not_finite_stays_where_it_is():
    _, x, w, b = programs()["linear"]
    x[3, 5], x[7, 0], w[9, 2] = math.nan, math.inf, -math.inf
    with torch.no_grad():
        found, wanted = plait.compile(F.linear)(x, w, b), F.linear(x, w, b)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3, equal_nan=True)


def test_strict_numerics_have_eagers_bits():
    _, *inputs = programs()["linear"]
    compiled = plait.compile(F.linear, options={"numerics": "strict"})
    with torch.no_grad():
        assert torch.equal(compiled(*inputs), F.linear(*inputs))
