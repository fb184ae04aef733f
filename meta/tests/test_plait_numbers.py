"""Floats that programs read from tensors: within one program, or in parts of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import plait

net = nn.Linear(5, 5)


def clipped(x):
    return x / max(1.0, x.norm().item())


def several(x):
    large, mean = float(x.abs().max()), x.mean().item()
    return torch.add(x, x, alpha=large * mean - 1), -large, min(large, mean)


def filled(x):
    return torch.full((3,), x.mean().item()), x.clamp(max=x.mean().item())


def powers(x):
    number = x.abs().mean().item()
    return x.abs() ** number, number**x, x.lerp(x * 2, number)


def written(x):
    number = x.norm().item()
    x.mul_(0.5)
    x.add_(x, alpha=number)
    return number


@pytest.mark.parametrize("program", [clipped, several, filled, powers, written])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_computed_with_a_number_is_one_program(program, dtype):
    compiled = plait.compile(program, fullgraph=True)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(4, 5, dtype=dtype)
        mine, other = x.clone(), x.clone()
        torch.testing.assert_close(compiled(mine), program(other))
        torch.testing.assert_close(mine, other)
    (graph,) = plait.report(compiled).graphs
    assert graph.outcome == "compiled"


def test_numbers_that_are_none_are_told_apart_as_python_does():
    def program(x):
        number = x.max().item()
        return max(1.0, number), max(number, 1.0), min(1.0, number), x * max(0.5, number)

    compiled = plait.compile(program)
    for value in (math.nan, 0.0, -0.0, math.inf, -math.inf, 3.0):
        x = torch.tensor([value])
        assert str(compiled(x)) == str(program(x))
    assert len(plait.report(compiled).graphs) == 1


def test_a_branch_on_a_number_breaks_and_gets_it():
    def program(x):
        number = x.norm().item()
        y = x * number
        return y - 1 if number > 3 else y + number

    compiled = plait.compile(program)
    for scale in (0.1, 10.0, 0.1):
        x = torch.full((5,), scale)
        torch.testing.assert_close(compiled(x), program(x))
    report = plait.report(compiled)
    assert {each.code for each in report.breaks} == {"GB0003"}
    assert {graph.outcome for graph in report.graphs} == {"compiled"}


def test_a_step_that_reads_numbers_before_it_goes_backward_is_one_program():
    def training():
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            out = model(x)
            out = out / max(out.detach().norm().item(), 1.0)
            loss = out.square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, step

    (eager, plain), (ours, step) = training(), training()
    compiled = plait.compile(step)
    for seed in range(4):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(compiled(x), plain(x))
        torch.testing.assert_close(ours.state_dict(), eager.state_dict())
    report = plait.report(compiled)
    assert not report.breaks
    assert {graph.outcome for graph in report.graphs} == {"compiled"}


# Graphs that a stage refuses for their numbers run in parts.


def logged(x):
    loss = net(x).square().mean()
    return loss, loss.detach().item()


def normalised(x):
    h = net(x)
    return net(h / max(1.0, h.detach().norm().item())).square()


def without_gradients(x):
    h = net(x)
    with torch.no_grad():
        number = h.norm().item()
        h2 = h * number
        h2.add_(1)
    return h * number + h2


def random(x):
    h = torch.dropout(net(x), 0.5, True)
    number = h.detach().abs().max().item()
    return torch.dropout(h * number, 0.5, True), -number


def in_pieces(x):
    a, b = net(x).chunk(2)
    number = a.detach().norm().item()
    return a * number, b.sum()


def over_views(x):
    h = net(x)
    y = h[1:]
    number = y.detach().norm().item()
    return h * number, y, y.detach()


PARTS = [logged, normalised, without_gradients, random, in_pieces, over_views]


@pytest.mark.parametrize("program", PARTS)
def test_what_autograd_records_runs_in_parts(program):
    compiled = plait.compile(program)
    for seed in range(3):
        sides = []
        for run in (program, compiled):
            net.zero_grad()
            torch.manual_seed(seed)
            x = torch.randn(4, 5)
            result = run(x)
            (result[0] if isinstance(result, tuple) else result).sum().backward()
            gradients = [parameter.grad.clone() for parameter in net.parameters()]
            sides.append((result, x, gradients, torch.is_grad_enabled(), torch.rand(1)))
        torch.testing.assert_close(sides[1], sides[0])
    report = plait.report(compiled)
    assert not report.breaks
    assert {graph.outcome for graph in report.graphs} == {"compiled"}


def test_parts_are_compiled_under_the_autocast_of_the_whole():
    def program(x):
        with torch.autocast("cpu", torch.bfloat16):
            h = net(x)
            number = h.detach().abs().max().item()
            return net(h / max(number, 1.0)).relu(), number

    compiled = plait.compile(program)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 5)
        found, expected = compiled(x), program(x)
        assert found[0].dtype == torch.bfloat16
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
        assert not torch.is_autocast_enabled("cpu")
    assert {graph.outcome for graph in plait.report(compiled).graphs} == {"compiled"}


def test_what_fails_in_a_later_part_has_changed_what_eager_has():
    def program(x, index):
        x.mul_(2)
        h = net(x * 1)
        h = h * h.detach().norm().item()
        x.add_(1)
        return h[:, index]

    compiled = plait.compile(program)
    for index in (torch.tensor([1, 2]), torch.tensor([1, 9]), torch.tensor([4, 0])):
        outcomes = []
        for run in (program, compiled):
            x = torch.ones(4, 5)
            try:
                outcomes.append((x, run(x, index)))
            except IndexError as error:
                outcomes.append((x, str(error)))
        torch.testing.assert_close(outcomes[1][0], outcomes[0][0])
        if isinstance(outcomes[0][1], str):
            assert outcomes[1][1] == outcomes[0][1]
        else:
            torch.testing.assert_close(outcomes[1][1], outcomes[0][1])
