"""GELU and its approximation are as near to the exact values as the README says."""

from __future__ import annotations

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from plait_cpp_codegen import build
from plait_ir_lowering import lower
from plait_scheduler import schedule


def exact(kind, x):
    if kind == "none":
        return x * 0.5 * torch.special.erfc(-x / math.sqrt(2))
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


@pytest.mark.parametrize("kind", ["none", "tanh"])
def test_errors_of_gelu(kind):
    x = torch.cat([torch.linspace(-9, 9, 100_003), torch.tensor([0.0, -0.0, 2.0**-149, 1e38])])
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, -1e38])

    def gelu(x):
        return [torch.nn.functional.gelu(x, approximate=kind)]

    run = build(schedule(lower(make_fx(gelu)(x))))
    found, right = run(x)[0], exact(kind, x.double())
    ulps = (found.double() - right).abs() / (right.abs() * 2.0**-23).clamp(min=2.0**-149)
    assert float(ulps[x > -1].max()) < 3.0
    assert float((found.double() - right).abs()[x <= -1].max()) < 2e-7
    few = build(schedule(lower(make_fx(gelu)(special))))(special)[0]
    # Of doubles: the vectors of ATen's float32 kernel make NaN of infinity.
    torch.testing.assert_close(few, gelu(special.double())[0].float(), equal_nan=True)
