"""Floats of 8 bits are rounded as ATen does."""

from __future__ import annotations

import pytest
import torch
from triton_checks import run

from plait_scheduler import parse_kernel
from plait_triton_codegen import render_kernel

KINDS = {"f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
SOURCES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def numbers(kind: str) -> torch.Tensor:
    """All numbers of a type, what lies between neighbours, and next to that; others at random."""
    every = torch.arange(256, dtype=torch.uint8).view(KINDS[kind]).float()
    ordered = every[every.isfinite()].sort().values
    between = (ordered[1:] + ordered[:-1]) / 2
    inf = torch.full_like(between, float("inf"))
    near = [between.nextafter(inf), between.nextafter(-inf)]
    drawn = torch.randint(-(2**31), 2**31, (5000,), generator=torch.Generator().manual_seed(0))
    edges = torch.tensor([448.0, 464.0, 480.0, 512.0, 57344.0, 61440.0, 65536.0, 1e30, 1e-30])
    edges = torch.cat([edges, -edges])
    return torch.cat([every, between, *near, edges, drawn.to(torch.int32).view(torch.float32)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_number_is_rounded_as_eager_rounds_it(kind, source) -> None:
    x = numbers(kind).to(SOURCES[source])
    kernel = parse_kernel(f"""\
kernel narrow(p0: read {source}[{len(x)}], p1: write {kind}[{len(x)}])
  for i0: {len(x)}
    outer store p1[i0] = to(p0[i0], {kind})
""")
    assert f"device.to_{kind}" in render_kernel(kernel).text
    (got,) = run(kernel, x)
    expected = x.to(KINDS[kind])
    same = got.view(torch.uint8) == expected.view(torch.uint8)
    same |= got.float().isnan() & expected.float().isnan()
    assert same.all(), x[~same]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", ["-0.0", "0.3", "1000000.0"])
def test_constants_are_rounded_so(kind, number) -> None:
    kernel = parse_kernel(f"""\
kernel whole(p0: write {kind}[20])
  for i0: 20
    outer store p0[i0] = {kind}({number})
""")
    (got,) = run(kernel)
    expected = torch.full((20,), float(number)).to(KINDS[kind])
    assert torch.equal(got.float().isnan(), expected.float().isnan())
    assert torch.equal(got.float().nan_to_num(0.0), expected.float().nan_to_num(0.0))
