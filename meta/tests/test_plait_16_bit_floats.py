"""Chains on bfloat16 and float16: nearer to float64 than eager, without telling on it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import plait

DTYPES = (torch.bfloat16, torch.float16)
CHAINS = {
    "functions": lambda x, y: ((x * 1.1 + y) * 0.3 - torch.tanh(x)) * torch.sigmoid(y),
    "choices": lambda x, y: torch.where(y > 0, x * 1.7, y * 0.3).relu() * x - y,
    "rows": lambda x, y: F.layer_norm(F.gelu(x + y) * x, x.shape[-1:]) * y,
    "a mean": lambda x, y: (x * y * 0.7 + x).mean(0) * 3.1,
    "moves": lambda x, y: torch.cat([x * 1.7 + y, (y * x).roll(1, 0)], -1) * 0.3,
    "broadcasts": lambda x, y: (x * 1.1 + y[:1]) * (y[:, :1] * x[:1] * 1.3),
}


def pair(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 37, 65, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.sampled(2)
def test_chains_are_nearer_to_float64_than_eager(name):
    chain = CHAINS[name]
    fast, strict = plait.compile(chain), plait.compile(chain, numerics="strict")
    for dtype in DTYPES:
        x, y = pair(dtype)
        exact, eager = chain(x.double(), y.double()), chain(x, y)
        ours = fast(x, y)
        assert ours.dtype is dtype
        assert (ours - exact).abs().mean() < 0.95 * (eager - exact).abs().mean()
        assert torch.equal(strict(x, y), eager)


def test_gradients_are_no_further_from_float64_than_eagers():
    def loss(x, y):
        return (F.gelu(x * y + 0.1) * torch.exp(-x * x)).float().square().mean()

    def gradients(run, dtype):
        given = [each.detach().to(dtype).requires_grad_() for each in pair(torch.bfloat16)]
        run(*given).backward()
        return torch.stack([each.grad.double() for each in given])

    exact = gradients(loss, torch.float64)
    eager = (gradients(loss, torch.bfloat16) - exact).abs().mean()
    ours = (gradients(plait.compile(loss), torch.bfloat16) - exact).abs().mean()
    assert ours <= eager


def test_compensated_sums_in_place_keep_what_rounding_loses():
    def add(total, lost, x):
        y = x - lost
        t = total + y
        lost.copy_((t - total) - y)
        total.copy_(t)

    fast = plait.compile(add)
    numbers = torch.rand(400, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    total, lost = torch.zeros(2, 50).bfloat16()
    for each in numbers:
        fast(total, lost, each)
    exact = numbers.double().sum(0)
    assert ((total - exact).abs() / exact).max() < 2**-7


def test_what_is_compared_is_rounded_for_all_that_read_it():
    def ranks(x, y):
        z = x * y
        return (z.amax(-1, keepdim=True) - z).sqrt(), z > 1.0, (z * 3).floor(), z.argmax(-1)

    fast = plait.compile(ranks)
    for dtype in DTYPES:
        x, y = pair(dtype, 2)
        for wanted, got in zip(ranks(x, y), fast(x, y), strict=True):
            assert torch.equal(wanted, got)


def test_casts_of_the_program_round():
    def residue(x, y):
        whole = x.float() * y.float()
        return whole - whole.to(x.dtype).float(), (x * y).float()

    x, y = pair(torch.bfloat16)
    for wanted, got in zip(residue(x, y), plait.compile(residue)(x, y), strict=True):
        assert torch.equal(wanted, got)


def test_the_report_says_how_many_values_stay_in_float32():
    chain = CHAINS["functions"]
    fast, strict = plait.compile(chain), plait.compile(chain, numerics="strict")
    rounding = plait.compile(chain, options={"scheduler.keep_wide": False})
    x, y = pair(torch.bfloat16)
    for each in (fast, strict, rounding):
        each(x, y)
    (graph,) = plait.report(fast).graphs
    assert set(graph.unrounded) == {"mul", "add", "mul_1", "tanh", "sub", "sigmoid"}
    words = "6 values of bfloat16 or float16 in float32, not rounded between operators"
    assert words in str(plait.report(fast))
    assert words in plait.report(fast).html()
    for each in (strict, rounding):
        assert plait.report(each).graphs[0].unrounded == ()
        assert "bfloat16 or float16 in float32" not in str(plait.report(each))


BACKWARDS = {
    "gelu": F.gelu,
    "silu": F.silu,
    "elu": F.elu,
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:], x.detach()[0], x.detach()[1]),
    "softmax": lambda x: x.softmax(-1),
    "loss": lambda x: F.smooth_l1_loss(x, x.detach().flip(0), reduction="none"),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BACKWARDS)
@pytest.mark.sampled(3)
def test_gradients_are_loops_no_further_from_float64_than_eager(name, dtype):
    def gradient(x):
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(BACKWARDS[name](x).float().square().sum(), x)
        return found

    x = pair(dtype, 3)[0]
    exact, wanted = gradient(x.double()), gradient(x)
    fast = plait.compile(gradient)
    got = fast(x)
    assert got.dtype is dtype
    assert not any(graph.external_calls for graph in plait.report(fast).graphs)
    errors = [(each.double() - exact).abs().mean() for each in (got, wanted)]
    assert errors[0] <= errors[1] * 1.05


def test_what_overflows_in_a_step_of_eager_does_so_here():
    x, y = torch.tensor([20.0, -1.0]).half(), torch.tensor([-1.0, 1.0]).half()
    wanted = F.soft_margin_loss(x, y)
    assert wanted.isinf()
    assert torch.equal(plait.compile(F.soft_margin_loss)(x, y), wanted)
