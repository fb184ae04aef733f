"""`options={"random": "counter"}`: random numbers that loops compute."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import plait
from plait_utils.counters import NORMAL, UNIFORM

COUNTER = {"random": "counter"}


def drawn(x):
    return (
        *(
            torch.rand_like(x),
            torch.randn_like(x),
            F.dropout(x, 0.3),
            torch.randint(-3, 9, (70, 7)),
        ),
        *(torch.rand(30, 3, dtype=torch.float64), torch.randn(100, dtype=torch.float64)),
        *(torch.empty(100).exponential_(2.0), torch.empty(100).uniform_(-2, 2)),
        *(torch.rand(100).bernoulli_(0.3), torch.rand(100).bernoulli()),
        *(torch.randn(100, dtype=torch.bfloat16), torch.rand(100, dtype=torch.float16)),
        torch.randint(0, 2**40, (50,)),
    )


def seeded(run, *args):
    torch.manual_seed(7)
    return run(*args)


def test_numbers_follow_from_the_seed_in_every_backend():
    x = torch.ones(40, 30)
    run = plait.compile(drawn, options=COUNTER)
    first, again = seeded(run, x), seeded(run, x)
    python = seeded(plait.compile(drawn, backend="python", options=COUNTER), x)
    assert not plait.report(run).eager_graphs
    for one, same, other, eager in zip(first, again, python, drawn(x), strict=True):
        assert torch.equal(one, same)
        torch.testing.assert_close(one, other)
        assert one.dtype == eager.dtype
        assert one.stride() == eager.stride()
    assert not torch.equal(run(x)[0], first[0])


def test_what_is_drawn_is_what_the_key_says():
    run = plait.compile(lambda x: (torch.rand_like(x), torch.randn_like(x)), options=COUNTER)
    found = seeded(run, torch.empty(33, 5))
    torch.manual_seed(7)
    bounds = (-(2**63), 2**63 - 1)
    keys = [torch.randint(*bounds, (1,)) for _ in range(2)]
    assert torch.equal(found[0], UNIFORM(keys[0], [33, 5], torch.float32))
    torch.testing.assert_close(found[1], NORMAL(keys[1], [33, 5], torch.float32))


def test_integers_and_shares():
    x = torch.zeros(300, 200)
    run = plait.compile(
        lambda x: (F.dropout(x + 1, 0.25), torch.randint(2, 5, (60_000,)), x.bernoulli(0.1)),
        options=COUNTER,
    )
    dropped, integers, ones = seeded(run, x)
    assert abs((dropped == 0).double().mean() - 0.25) < 6e-3
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert integers.unique().tolist() == [2, 3, 4]
    assert (integers.bincount()[2:] / 60_000 - 1 / 3).abs().max() < 8e-3
    assert abs(ones.double().mean() - 0.1) < 5e-3


@pytest.mark.parametrize(("low", "high"), [(-(2**62), 2**63 - 1), (-(2**63), 0), (0, 2**63 - 1)])
def test_integers_of_wide_ranges_are_all_in_them(low, high):
    run = plait.compile(lambda x: torch.randint(low, high, (500,)) + x, options=COUNTER)
    found = run(torch.zeros(500, dtype=torch.int64))
    assert low <= found.min() < low // 2 + high // 2 < found.max() < high


REFUSED = {
    "a range of another dtype": lambda x: torch.randint(0, 300, x.shape, dtype=torch.uint8),
    "a range without numbers": lambda x: x.clone().uniform_(2, -2),
    "a range without end": lambda x: x.clone().uniform_(0, math.inf),
    "a probability above 1": lambda x: x.clone().bernoulli_(2.0),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
def test_what_eager_refuses_is_refused(program):
    with pytest.raises(RuntimeError) as wanted:
        program(torch.ones(20))
    with pytest.raises(RuntimeError, match=re.escape(str(wanted.value).splitlines()[0])):
        plait.compile(program, options=COUNTER)(torch.ones(20))


def test_a_backward_has_the_numbers_of_its_forward():
    run = plait.compile(lambda x: F.dropout(x.sin(), 0.4), options=COUNTER)
    x = torch.randn(64, 50, requires_grad=True)
    y = run(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    wanted = torch.where(y != 0, x.cos() / 0.6, torch.zeros(()))
    torch.testing.assert_close(gradient, wanted.detach())


def test_gradients_of_gradients_have_them_too():
    run = plait.compile(lambda x: F.dropout(x, 0.5).pow(3).sum(), options=COUNTER)
    x = torch.randn(40, 30, requires_grad=True)
    (gradient,) = torch.autograd.grad(run(x), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    kept = (gradient != 0).double()
    torch.testing.assert_close(gradient, (3 * x**2 * 8 * kept).float())
    torch.testing.assert_close(second, (6 * x * 8 * kept).float())


def test_checkpoints_compute_the_same_numbers_again():
    linear = torch.nn.Linear(30, 30)

    def block(x):
        for _ in range(3):
            x = F.dropout(linear(x), 0.5)
        return x

    run = plait.compile(lambda x: checkpoint(block, x, use_reentrant=False), options=COUNTER)
    plain = plait.compile(block, options=COUNTER)
    found = []
    for each in (run, plain):
        x = torch.arange(600.0).view(20, 30).requires_grad_()
        y = seeded(each, x)
        found.append((y.detach(), *torch.autograd.grad(y.sum(), x)))
    assert not plait.report(run).eager_graphs
    # The products may be summed up in another order beside other work: of values near 100.
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-3)


def test_one_program_draws_for_all_sizes():
    opened = plait.compile(torch.rand_like, dynamic=True, options=COUNTER)
    fixed = plait.compile(torch.rand_like, dynamic=False, options=COUNTER)
    for rows in (3, 5, 8):
        x = torch.empty(rows, 6)
        assert torch.equal(seeded(opened, x), seeded(fixed, x))
    assert len(plait.report(opened).graphs) == 1


def test_a_generator_of_ones_own_is_left():
    def program(x, generator):
        return torch.rand(x.shape, generator=generator)

    run = plait.compile(program, options=COUNTER)
    x = torch.empty(5, 4)
    found = [each(x, torch.Generator().manual_seed(3)) for each in (program, run)]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "options", [{"numerics": "strict"}, {"verify": 1}, {"random": "dice"}], ids=str
)
def test_what_contradicts_it_is_told(options):
    with pytest.raises(plait.OptionError, match="random"):
        plait.compile(drawn, options=COUNTER | options)
