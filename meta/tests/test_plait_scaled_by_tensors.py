"""Operators that are given a tensor where they take a number that scales, under gradients."""

from __future__ import annotations

import pytest
import torch

import plait

PROGRAMS = {
    "add": lambda x, w, t: torch.add(x, w, alpha=t).sin(),
    "a method": lambda x, w, t: x.sub(w[0], alpha=t) * t,
    "rsub": lambda x, w, t: torch.rsub(x, w, alpha=t).exp(),
    "addcmul": lambda x, w, t: torch.addcmul(x, w, w.sin(), value=t) @ w,
    "addcdiv": lambda x, w, t: torch.addcdiv(x, w, w.abs() + 1, value=t).sin(),
    "in place": lambda x, w, t: (x * 2).add_(w, alpha=t).addcmul_(x, w, value=t).sin(),
}


def observe(run, dtype, rate):
    torch.manual_seed(0)
    x, w = (torch.randn(3, 3, dtype=dtype, requires_grad=True) for _ in range(2))
    y = run(x, w, rate)
    first = torch.autograd.grad((y * y).sum(), [x, w], create_graph=True)
    second = torch.autograd.grad((first[0] * first[1]).sum(), [x, w])
    return y, first, second


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_eagers_for_each_number(name):
    program = PROGRAMS[name]
    compiled = plait.compile(program)
    for number in (2.5, -0.5, 0.0):
        rate = torch.tensor(number)
        got = observe(compiled, torch.float64, rate)
        torch.testing.assert_close(got, observe(program, torch.float64, rate))
    report = plait.report(compiled)
    assert not [each.reason for each in report.graphs if each.reason]
    assert not report.breaks


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64])
def test_other_dtypes_are_as_in_eager(dtype):
    def program(x, w, t):
        return torch.add(x, w.to(dtype), alpha=t) * 2.0

    x, w = torch.randn(3).to(dtype), torch.randn(3, requires_grad=True)
    outcomes = []
    for run in (program, plait.compile(program)):
        try:
            outcomes.append(run(x, w, torch.tensor(1.7)))
        except RuntimeError as error:
            outcomes.append(str(error))
    if isinstance(outcomes[0], str):
        assert outcomes[0] == outcomes[1]
    else:
        torch.testing.assert_close(outcomes[1], outcomes[0])


def test_strict_numbers_are_eagers():
    compiled = plait.compile(PROGRAMS["add"], numerics="strict")
    torch.manual_seed(0)
    x, w = (torch.randn(64, requires_grad=True) for _ in range(2))
    rate = torch.tensor(1 / 3)
    assert torch.equal(compiled(x, w, rate), PROGRAMS["add"](x, w, rate))
