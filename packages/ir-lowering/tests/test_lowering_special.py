"""Bessel and gamma functions by loops, against ATen's kernels in f64."""

from __future__ import annotations

import math

import pytest
import torch
from lowering_oracle import check

from plait_ir_lowering import external_ops

SPECIAL = torch.special
FUNCTIONS = {
    "i0": torch.i0,
    "i0e": SPECIAL.i0e,
    "i1": SPECIAL.i1,
    "i1e": SPECIAL.i1e,
    "bessel_j0": SPECIAL.bessel_j0,
    "bessel_j1": SPECIAL.bessel_j1,
    "bessel_y0": SPECIAL.bessel_y0,
    "bessel_y1": SPECIAL.bessel_y1,
    "modified_bessel_i0": SPECIAL.modified_bessel_i0,
    "modified_bessel_i1": SPECIAL.modified_bessel_i1,
    "modified_bessel_k0": SPECIAL.modified_bessel_k0,
    "modified_bessel_k1": SPECIAL.modified_bessel_k1,
    "scaled_modified_bessel_k0": SPECIAL.scaled_modified_bessel_k0,
    "scaled_modified_bessel_k1": SPECIAL.scaled_modified_bessel_k1,
    "spherical_bessel_j0": SPECIAL.spherical_bessel_j0,
    "digamma": torch.digamma,
    "polygamma_0": lambda x: torch.polygamma(0, x),
    "polygamma_1": lambda x: torch.polygamma(1, x),
}
POINTS = [0.0, -0.0, 1.0, 2.0, 5.0, 8.0, 10.0, -3.0, 0.25, 1e-6, -0.5, math.inf, math.nan, -1e-6]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_functions(name):
    torch.manual_seed(0)
    x = torch.cat([torch.randn(300, dtype=torch.float64) * 6, torch.tensor(POINTS).double()])
    graph = check(FUNCTIONS[name], x, tolerance=1e-11)
    assert not external_ops(graph)
    check(FUNCTIONS[name], torch.arange(1, 9))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_functions_in_f32(name):
    torch.manual_seed(0)
    x = torch.cat([torch.rand(300) * 12 + 0.05, torch.tensor(POINTS[:-1])])
    check(FUNCTIONS[name], x, tolerance=2e-5)
