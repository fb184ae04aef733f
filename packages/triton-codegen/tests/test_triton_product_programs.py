"""Programs of products are kernels with what surrounds these."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from triton_product_checks import as_it_lies, bf16, executable, given
from triton_products import program_of

from plait_scheduler import print_program
from plait_utils import DiskCache

LAST = {"memory_format": torch.channels_last}
IMAGE = given("bf16", 2, 32, 9, 10).contiguous(**LAST)
WINDOWS = given("bf16", 48, 32, 3, 3, seed=1).contiguous(**LAST)
PROGRAMS = {
    "convolution, ReLU": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        (IMAGE, WINDOWS, given("bf16", 48, seed=2)),
        1,
    ),
    "convolution in steps, spread": (
        lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=(1, 2), dilation=(1, 2)) * 2,
        (IMAGE, WINDOWS),
        1,
    ),
    "convolution of points, residual": (
        lambda x, w, y: F.relu(F.conv2d(x, w) + y),
        (
            IMAGE,
            given("bf16", 48, 32, 1, 1, seed=1),
            given("bf16", 2, 48, 9, 10, seed=2).contiguous(**LAST),
        ),
        1,
    ),
    "linear and GELU": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        (bf16(2, 20, 48), bf16(80, 48, seed=1), bf16(80, seed=2)),
        1,
    ),
    "a residual": (
        lambda x, w, y: torch.relu(x @ w) + y,
        (bf16(40, 48), bf16(48, 80, seed=1), bf16(40, 80, seed=2)),
        1,
    ),
    "several results": (
        lambda x, w: ((y := x @ w), y.sigmoid()),
        (bf16(40, 48), bf16(48, 80, seed=1)),
        1,
    ),
    "scaled addition": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0),
        (given("f32", 40, 80), given("f32", 40, 48), given("f32", 48, 80)),
        1,
    ),
    "addition of one number each row": (
        lambda c, a, b: torch.addmm(c, a, b),
        (given("f32", 40, 1), given("f32", 40, 48), given("f32", 48, 80)),
        1,
    ),
    "both turned": (lambda a, b: a.t() @ b.t(), (bf16(48, 40), bf16(80, 48, seed=1)), 1),
    "a part of a matrix": (
        lambda a, b: a @ b.t(),
        (bf16(40, 80)[:, 16:64], bf16(80, 96, seed=1)[:, ::2]),
        1,
    ),
    "batches": (
        lambda a, b, c: torch.baddbmm(c, a.transpose(1, 2), b).tanh(),
        (bf16(3, 48, 20), bf16(3, 48, 80, seed=1), bf16(3, 20, 80, seed=2)),
        1,
    ),
    "a weight that is widened": (
        lambda x, w: x @ w.to(x.dtype),
        (bf16(40, 48), given("i8", 48, 80)),
        1,
    ),
    "a weight that is unpacked": (
        lambda x, w, s: x @ (w.to(x.dtype) * s),
        (bf16(40, 48), given("i8", 48, 80), bf16(80)),
        1,
    ),
    "bytes": (
        lambda a, b, s: torch._int_mm(a, b.t()).float() * s,
        (given("i8", 32, 48), given("i8", 80, 48), given("f32", 80)),
        1,
    ),
    "divided sums": (
        lambda a, b, c: F.silu(torch.addmm(c, a, b)),
        (bf16(16, 4096), bf16(4096, 64, seed=1), bf16(64, seed=2)),
        2,
    ),
    "gated": (
        lambda x, g, u: F.silu(x @ g) * (x @ u),
        (bf16(40, 48), bf16(48, 80, seed=1), bf16(48, 80, seed=2)),
        1,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_products_agree_with_eager(name, tmp_path) -> None:
    function, inputs, launches = PROGRAMS[name]
    program = program_of(function, *inputs)
    made = executable(program, DiskCache(tmp_path))
    assert made.metadata["launches"] == launches, print_program(program)
    assert any("dot(" in kernel.text for kernel in made.kernels)
    got = made(*map(as_it_lies, inputs))
    known = function(*inputs)
    wide = function(*(x.float() if x.is_floating_point() else x for x in inputs))
    pairs = zip(got, *((r if isinstance(r, tuple) else (r,)) for r in (known, wide)), strict=True)
    for actual, like, expected in pairs:
        assert (actual.dtype, actual.shape) == (like.dtype, like.shape)
        rounding = 2e-2 if like.dtype is torch.bfloat16 else 1e-4
        largest = float(expected.abs().max())
        torch.testing.assert_close(
            actual.cpu().float(), expected.float(), rtol=rounding, atol=rounding * largest / 2
        )


def test_products_stay_calls_where_nothing_names_them() -> None:
    function, inputs, _ = PROGRAMS["linear and GELU"]
    text = print_program(program_of(function, *inputs, products=""))
    assert "aten::addmm" in text
    assert "reduce" not in text
