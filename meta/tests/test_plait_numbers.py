"""Floats that programs read from tensors: within one program, or in parts of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import plait

torch.manual_seed(0)  # before any test has: the weights are the same in each run
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


def branching(x):
    number = x.norm().item()
    return number * 2, x - 1 if number > 3 else x + number


PROGRAMS = (clipped, several, filled, powers, written, branching)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_numbers_of_gpus_are_read_between_parts(program, device, monkeypatch):
    monkeypatch.setattr("plait_fx_passes.record.recorder.is_readable", lambda tensor: False)
    compiled = plait.compile(program)
    for scale in (0.1, 10.0, 0.1):
        x = torch.full((5,), scale, device=device)
        mine, other = x.clone(), x.clone()
        torch.testing.assert_close(compiled(mine), program(other))
        torch.testing.assert_close(mine, other)


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


# Numbers go to a backward, too.


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


def by_its_loss(x):
    loss = net(x).square().mean()
    return loss / loss.item() + loss * loss.tolist(), loss.item()


def of_a_result(x):
    norm = net(x).norm()
    return norm * (net(x) * norm.item()).sin().sum(), norm


GRADIENTS = [
    *(logged, normalised, without_gradients, random, in_pieces, over_views, by_its_loss),
    of_a_result,
]


@pytest.fixture
def exact():
    """The weights in double precision."""
    net.double()
    yield
    net.float()


def compare(program, compiled, changed=()):
    """Results, gradients, and those of gradients where there are any."""
    for seed in range(3):
        sides = []
        for run in (program, compiled):
            torch.manual_seed(seed)
            x = torch.randn(4, 5, dtype=torch.float64)
            results = run(x, *(each(seed) for each in changed))
            results = results if isinstance(results, tuple) else (results,)
            weights = list(net.parameters())
            first = torch.autograd.grad(results[0].sin().sum(), weights, create_graph=True)
            size = sum(each.square().sum() for each in first)
            second = torch.autograd.grad(size, weights, allow_unused=True)
            sides.append((results, x, first, second, torch.is_grad_enabled(), torch.rand(1)))
        torch.testing.assert_close(sides[1], sides[0])
    report = plait.report(compiled)
    assert not report.breaks
    assert {graph.outcome for graph in report.graphs} == {"compiled"}
    return [graph.name for graph in report.graphs if ".gradients" not in graph.name]


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("program", GRADIENTS)
@pytest.mark.sampled(2)
def test_numbers_go_to_a_backward(program):
    names = compare(program, plait.compile(program))
    assert len([name for name in names if "backward" not in name]) == 1


def annealed(x, rate):
    h = net(x)
    return h.square().mean() + rate * (h * (1 - rate)).sin().sum(), rate * 2


@pytest.mark.usefixtures("exact")
def test_floats_that_change_are_given_to_one_program_and_its_backward():
    compiled = plait.compile(annealed, fullgraph=True)
    names = compare(annealed, compiled, [lambda seed: seed / 7 + 0.1])
    count = len([name for name in names if "backward" not in name])
    assert count == 2  # of the first float, and of any
    before = len(plait.report(compiled).graphs)
    for rate in (0.7, -1.5, 0.0, math.inf):
        found, expected = (
            run(torch.ones(4, 5, dtype=torch.float64), rate) for run in (compiled, annealed)
        )
        torch.testing.assert_close(found, expected, equal_nan=True)
    assert len(plait.report(compiled).graphs) == before


# Graphs whose gradients are decided by a number run in parts.


def power(x):
    h = net(x).abs() + 1
    return (h ** h.detach().mean().item()).sin()


def power_of_parts(x):
    h = torch.dropout(net(x), 0.5, True)
    number = h.detach().abs().max().item()
    a, b = ((h * number).abs() + 1).chunk(2)
    return torch.dropout(a**number, 0.5, True), -number, b


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("program", [power, power_of_parts])
def test_what_is_decided_by_a_number_runs_in_parts(program):
    names = compare(program, plait.compile(program))
    assert any("part" in name for name in names)


def two_ways(x, w, v):
    first = (x * w).abs() + 1
    second = (first.sin() * v).abs() + 1
    number = first.detach().mean().item()
    return first**number, second**number


def leaves():
    w, v = torch.full((6,), 0.5), torch.full((6,), 2.0)
    return torch.arange(6.0) - 2, w.requires_grad_(), v.requires_grad_()


def gradients(program, losses):
    """Gradients of leaves from some losses, and the hooks that were called."""
    x, w, v = leaves()
    called = set()
    w.register_hook(lambda gradient: called.add("w"))
    v.register_hook(lambda gradient: called.add("v"))
    results = program(x, w, v)
    sum(results[n].sum() for n in losses).backward()
    return w.grad, v.grad, called


@pytest.mark.parametrize("losses", [(0,), (1,), (0, 1)])
def test_gradients_come_only_where_those_of_the_whole_do(losses):
    compiled = plait.compile(two_ways)
    *found, called = gradients(compiled, losses)
    *expected, known = gradients(two_ways, losses)
    torch.testing.assert_close(found, expected)
    assert called == known
    assert any("part" in graph.name for graph in plait.report(compiled).graphs)


def test_results_that_parts_alone_see_have_one_backward():
    def program(x, w, v):
        first, second = two_ways(x, w, v)
        return ((first.sum() + (second.cos() * first).sum()),)

    compiled = plait.compile(program)
    *found, called = gradients(compiled, (0,))
    *expected, known = gradients(program, (0,))
    torch.testing.assert_close(found, expected)
    assert called == known
    names = [graph.name for graph in plait.report(compiled).graphs if "backward" in graph.name]
    assert len(names) == 2  # of each part one


def test_what_the_program_differentiates_by_is_seen():
    def program(x, w, v):
        first = (x * w).abs() + 1
        second = (first.sin() * v).abs() + 1
        number = first.detach().mean().item()
        loss = (first**number).sum() + (second**number).cos().sum()
        return loss, *torch.autograd.grad(loss, [first, w], retain_graph=True)

    found = plait.compile(program)(*leaves())
    torch.testing.assert_close(found, program(*leaves()))


def test_parts_are_compiled_under_the_autocast_of_the_whole():
    def program(x):
        with torch.autocast("cpu", torch.bfloat16):
            h = net(x)
            number = h.detach().abs().max().item()
            return net(h.abs().float() ** min(number, 1.0)).relu(), number

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
        h = (h.abs() + 1) ** h.detach().mean().abs().item()
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


OF_COUNTS = {
    "a quotient": lambda x, n: x * (1 - 1 / n),
    "a divisor": lambda x, n: x.sum() / n,
    "a float": lambda x, n: x * float(n),
    "the less": lambda x, n: x * min(1.0, n / 5),
    "a weight": lambda x, n: x.lerp(x * x, 1 / n),
    "a slope": lambda x, n: torch.nn.functional.leaky_relu(x - 0.5, 1 / n),
    "a tensor": lambda x, n: x * torch.tensor(1 / n),
    "a size and it": lambda x, n: x * (x.shape[0] / n),
}


@pytest.mark.parametrize("name", OF_COUNTS)
def test_quotients_of_a_count_go_to_a_backward(name):
    calls = {"plain": 0, "compiled": 0}

    def program(x, kind):
        calls[kind] += 1
        return OF_COUNTS[name](x * 1, calls[kind])

    compiled = plait.compile(program)
    for _ in range(5):
        found = []
        for run, kind in ((program, "plain"), (compiled, "compiled")):
            x = torch.tensor([0.3, 0.6, 0.9], requires_grad=True)
            result = run(x, kind)
            found.append((result, *torch.autograd.grad(result.square().sum(), x)))
        torch.testing.assert_close(*found)
    report = plait.report(compiled)
    assert {graph.outcome for graph in report.graphs} == {"compiled"}
