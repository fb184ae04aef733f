"""Operators of a user's that write to arguments, in the middle of compiled programs."""

from __future__ import annotations

import pytest
import torch

import plait

seen: list[float] = []


@torch.library.custom_op("plait_tests::gather_into", mutates_args={"total"})
def gather_into(total: torch.Tensor, x: torch.Tensor) -> None:
    seen.append(total.sum().item())
    total.add_(x.sum(0))


def program(x, total):
    hidden = torch.tanh(x) * 2
    gather_into(total, hidden)
    again = (hidden * total).relu()
    gather_into(total[:2], again[:, :2])
    return again.exp() + total


def outcome(function, requires_grad=False):
    torch.manual_seed(0)
    x, total = torch.randn(3, 4, requires_grad=requires_grad), torch.zeros(4)
    seen.clear()
    value = function(x, total)
    if requires_grad:
        value.sum().backward()
    return value.detach(), total, x.grad, list(seen)


@pytest.mark.parametrize("backend", [None, "aten"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_is_around_it_compiles(backend, requires_grad):
    if requires_grad:  # autograd has no formula for the operator

        def function(x, total):
            return program(x.detach(), total) * x
    else:
        function = program
    compiled = plait.compile(function, backend=backend)
    expected = outcome(function, requires_grad)
    for _ in range(2):
        torch.testing.assert_close(outcome(compiled, requires_grad), expected)
    report = plait.report(compiled)
    assert not report.breaks
    assert {graph.outcome for graph in report.graphs} == {"custom" if backend else "compiled"}


def test_a_batch_of_another_size_calls_it_too():
    compiled = plait.compile(program, dynamic=True)
    for rows in (2, 3, 5):
        x = torch.arange(rows * 4.0).reshape(rows, 4) / 9
        totals = torch.zeros(2, 4)
        torch.testing.assert_close(compiled(x, totals[0]), program(x, totals[1]))
        torch.testing.assert_close(totals[0], totals[1])


def test_verification_calls_it_once():
    compiled = plait.compile(program, options={"verify": 2})
    expected = outcome(program)
    for _ in range(3):
        torch.testing.assert_close(outcome(compiled), expected)
    (graph,) = plait.report(compiled).graphs
    assert graph.outcome == "compiled"


@torch.library.custom_op("plait_tests::fill_up_to", mutates_args={"x", "others"})
def fill_up_to(x: torch.Tensor, others: list[torch.Tensor], count: int) -> None:
    seen.append(x.sum().item())
    x[:count] = 7.0
    if count > 2:
        raise ValueError(f"{count} are too many")
    for each in others:
        each.mul_(2)


fill_up_to.register_fake(lambda x, others, count: None)


def raises_at_last(x, y, log):
    x.add_(1)
    fill_up_to(x, [y], 3)
    x.mul_(2)


def raises_in_a_view(x, y, log):
    y.add_(x)
    log.append("before")
    fill_up_to(x.view(2, 3).t(), [], 3)
    log.append("after")


def handles_it(x, y, log):
    x.add_(1)
    try:
        fill_up_to(x[1:], [y], 3)
    except ValueError as error:
        log.append(str(error))
        y.sub_(1)
    return x * y


@torch.library.custom_op("plait_tests::count_into", mutates_args={"total"})
def count_into(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    seen.append(x.sum().item())
    total.add_(x.sum())
    return x.cumsum(0)


count_into.register_fake(lambda total, x: torch.empty_like(x))


def raises_the_second_time(x, y, log):
    fill_up_to(x, [y], 2)
    x.add_(1)
    fill_up_to(x, [y], 3)


def raises_after_another(x, y, log):
    sums = count_into(y, x)
    x.mul_(sums)
    y.sub_(1)
    more = count_into(y[2:], sums)
    y.add_(more)
    fill_up_to(y, [x], 3)
    x.zero_()


def handles_the_third_time(x, y, log):
    for count in (1, 2, 4):
        try:
            fill_up_to(x, [y], count)
        except ValueError as error:
            log.append(str(error))
        x.add_(y.sum())
    return x * y


RAISING = [
    *(raises_at_last, raises_in_a_view, handles_it, raises_the_second_time),
    *(raises_after_another, handles_the_third_time),
]


@pytest.mark.parametrize("backend", [None, "python"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", RAISING)
def test_what_it_wrote_before_it_raised_stays(function, requires_grad, backend):
    def observe(run):
        x, y = torch.arange(6.0), torch.ones(6)
        if requires_grad:
            x, y = x.requires_grad_() * 1, y.requires_grad_() * 1
        log: list[str] = []
        seen.clear()
        try:
            value, told = run(x, y, log), None
        except ValueError as error:
            value, told = None, str(error)
        return value, x.detach(), y.detach(), log, told, list(seen)

    compiled = plait.compile(function, backend=backend)
    for _ in range(2):
        wanted, got = observe(function), observe(compiled)
        torch.testing.assert_close(got[:3], wanted[:3])
        assert got[3:] == wanted[3:]
