"""Whole training steps with every optimizer of torch, compiled natively: what eager gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import plait

TENSOR = torch.tensor
OPTIMIZERS = {
    "SGD": {"lr": 0.05},
    "Adam": {"lr": 0.01},
    "AdamW": {"lr": 0.01},
    "Adamax": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "Adagrad": {"lr": 0.05},
    "Adadelta": {"lr": 0.5},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
    "Rprop": {"lr": 0.01},
    "ASGD": {"lr": 0.05, "t0": 2},
    "Adafactor": {"lr": 0.05},
    "Muon": {"lr": 0.05},
}
OPTIONS = {
    "plain": {},
    "tensor rate": {"lr": TENSOR(0.02, dtype=torch.float64), "foreach": False},
    "tensor betas": {
        "lr": TENSOR(0.02, dtype=torch.float64),
        "betas": (TENSOR(0.8, dtype=torch.float64), TENSOR(0.9, dtype=torch.float64)),
    },
}
UNTAKEN = {
    "Adafactor": {"tensor rate"},  # of one element, where it looks at the number
}
BREAKING = {("RAdam", "tensor betas"), ("Rprop", "tensor rate"), ("ASGD", "tensor rate")}
"""Those that decide by the values of the tensors they are given, or make their state of them."""
ROUNDED = {"Muon": {"rtol": 2e-2, "atol": 2e-2}}
"""How near those are to eager's that compute in bfloat16."""
FORMULAS = {"RAdam": 2, "ASGD": 3}
"""What computes a step by one formula at first, and by another later."""


def takes(name: str, option: str) -> bool:
    """Whether torch's optimizer takes the option on the CPU."""
    try:
        training(name, option)
    except (TypeError, ValueError, RuntimeError):
        return False
    return option not in UNTAKEN.get(name, ())


def training(name, option):
    torch.manual_seed(0)
    bias = name != "Muon"  # which is for matrices
    layers = nn.Linear(4, 5, bias=bias), nn.Tanh(), nn.Linear(5, 2, bias=bias)
    model = nn.Sequential(*layers).double()
    make = getattr(torch.optim, name)
    optimizer = make(model.parameters(), **{**OPTIMIZERS[name], **OPTIONS[option]})

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, step


def batches(count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        drawn = torch.randn(8, 6, generator=generator, dtype=torch.float64)
        yield drawn[:, :4].contiguous(), drawn[:, 4:].contiguous()


def same(one, two, **near):
    """Parameters, state and settings of two optimizers."""
    torch.testing.assert_close(list(one[0].parameters()), list(two[0].parameters()), **near)
    mine, other = one[1].state_dict(), two[1].state_dict()
    assert list(mine["state"]) == list(other["state"])
    for key, state in mine["state"].items():
        assert list(state) == list(other["state"][key])
        torch.testing.assert_close(state, other["state"][key], **near)
    for group, expected in zip(mine["param_groups"], other["param_groups"], strict=True):
        torch.testing.assert_close(group, expected)


SAMPLE = {
    *(("SGD", "plain"), ("AdamW", "plain"), ("Adafactor", "plain"), ("Muon", "plain")),
    *(("Adam", "tensor betas"), ("Adagrad", "tensor rate")),
}
WAYS = [
    pytest.param(n, o, marks=[] if (n, o) in SAMPLE else pytest.mark.slow)
    for n in OPTIMIZERS
    for o in OPTIONS
    if takes(n, o)
]


@pytest.mark.parametrize(("name", "option"), WAYS)
def test_five_steps_are_those_of_eager_in_one_program(name, option):
    eager, ours = training(name, option), training(name, option)
    step = plait.compile(ours[2])
    near = ROUNDED.get(name, {})
    for x, y in batches(5):
        torch.testing.assert_close(step(x, y), eager[2](x, y), **near)
        same(ours, eager, **near)
    report = plait.report(step)
    assert {graph.outcome for graph in report.graphs} == {"compiled"}
    if (name, option) not in BREAKING:
        assert not report.breaks
        assert len(report.graphs) <= FORMULAS.get(name, 1) + 1  # the first makes the state


def test_an_optimizer_that_decides_by_data_gives_what_eager_gives():
    """LBFGS looks at what it has computed after each of its passes."""

    def training():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=2)

        def step(x, y):
            def closure():
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                return loss

            return optimizer.step(closure).detach()

        return model, optimizer, step

    eager, ours = training(), training()
    step = plait.compile(ours[2])
    for x, y in batches(3):
        torch.testing.assert_close(step(x, y), eager[2](x, y))
        same(ours, eager)
    report = plait.report(step)
    assert {graph.outcome for graph in report.graphs} == {"compiled"}
    assert {each.code for each in report.breaks} <= {"GB0003", "GB0004"}
