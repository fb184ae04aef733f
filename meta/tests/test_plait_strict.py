"""`numerics="strict"`: eager's results to the last bit."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import plait

sys.path.insert(0, str(Path(__file__).parents[2] / "packages" / "ir-lowering"))

from operators import bits, bits_page, samples
from operators.score import Outcome, Verdict


@pytest.mark.parametrize("name", ["sub", "maximum"])
def test_operators_have_every_bit_of_eager(name):
    (op,) = [each for each in samples.operators(None) if samples.name_of(each) == name]
    verdicts = bits.check(op, 3)
    assert {each.outcome for each in verdicts} <= {Outcome.LOOPS, Outcome.EXTERNAL, Outcome.EAGERLY}
    outcomes = {each.dtype: each.outcome for each in verdicts}
    assert outcomes["float32"] is (Outcome.LOOPS if name == "sub" else Outcome.EXTERNAL)


class Block(nn.Module):
    """A layer of a language model."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.wide = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x):
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        heads = [part.view(*x.shape[:2], 4, 8).transpose(1, 2) for part in parts]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.wide(self.norm(x))


def _images():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


PROGRAMS = {
    "a layer of a language model": (Block, (2, 9, 32), torch.bfloat16),
    "images": (_images, (2, 3, 16, 16), torch.float32),
    "images with statistics that stay": (lambda: _images().eval(), (2, 3, 16, 16), torch.float32),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_models_and_their_gradients_have_every_bit_of_eager(name):
    make, shape, dtype = PROGRAMS[name]
    torch.manual_seed(0)
    eager = make().to(dtype)
    model = copy.deepcopy(eager)
    fast = plait.compile(model, numerics="strict")
    x = torch.randn(shape, dtype=dtype)
    results = []
    for run in (eager, fast):
        given = x.clone().requires_grad_()
        loss = (run(given).float() ** 2).mean()
        loss.backward()
        whole = run if run is eager else model
        results.append([loss, given.grad, *(each.grad for each in whole.parameters())])
        results[-1] += [each.clone() for each in whole.buffers()]
    for wanted, got in zip(*results, strict=True):
        assert torch.equal(wanted, got)
    assert set(plait.report(fast).outcomes) == {"compiled"}


def test_products_and_sums_round_apart():
    """Of 2**12 + 1 squared, the sum with its negative rounding keeps what a fused one would not."""

    def error(x):
        return x * x - (2.0**24 + 2.0**13)

    x = torch.full((64,), 4097.0)
    fast = plait.compile(error, numerics="strict")
    assert torch.equal(fast(x), error(x))
    report = plait.report(fast)
    assert (report.kernels, report.external_calls) == (1, 0)


def test_chains_round_at_each_step():
    def chain(x, y):
        return ((x * 1.1 + y) * 0.3 - x) / (y * y + 1)

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x, y = torch.randn(2, 1000).to(dtype)
        fast = plait.compile(chain, numerics="strict")
        assert torch.equal(fast(x, y), chain(x, y))
        assert plait.report(fast).external_calls == 0


def test_a_wrong_bit_is_told():
    one, other = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
    assert "1 of 2 differ" in bits.difference([one], [other])
    assert bits.difference([one / 0], [-other / 0 * 1]) is not None
    nans = torch.tensor([float("nan")]), -torch.tensor([float("nan")])
    assert bits.difference([nans[0]], [nans[1]]) is None
    with pytest.raises(ValueError, match=r"add\[float32\]"):
        bits_page.page([Verdict("add", "float32", Outcome.WRONG, "a bit")])


def test_other_names_are_refused():
    for options in ({"numerics": "exact"}, {"options": {"numerics": "exact"}}):
        with pytest.raises(plait.OptionError, match="there is no numerics 'exact'"):
            plait.compile(abs, **options)
    with pytest.raises(plait.OptionError, match="contradict"):
        plait.compile(torch.exp, numerics="strict", options={"numeric_rewrites": True})
