"""The option `never_slower`: what is slower compiled runs eagerly, and nobody sees it measured."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

import plait
import plait.pipeline
from plait.racing import Race, Racing

CALLS = 14


@pytest.fixture
def slowed(monkeypatch):
    """Programs that take 3 ms more, and how often they ran."""
    build, runs = plait.pipeline.build, []

    def build_slow(*args):
        made = build(*args)

        def slow(*inputs):
            runs.append(1)
            time.sleep(0.003)
            return made.run(*inputs)

        return replace(made, run=slow)

    monkeypatch.setattr(plait.pipeline, "build", build_slow)
    return runs


def raced(function, **options):
    return plait.compile(function, options={"never_slower": True} | options)


def test_what_is_slower_compiled_runs_eagerly_and_is_told(slowed, caplog):
    def program(x):
        return torch.sin(x) * x

    fast, x = raced(program), torch.randn(30)
    for _ in range(CALLS):
        torch.testing.assert_close(fast(x), program(x))
    ran = len(slowed)
    assert torch.equal(fast(x), program(x))
    assert len(slowed) == ran  # it runs no more
    (graph,) = plait.report(fast).graphs
    assert graph.outcome == "eager"
    assert "slower than eager" in graph.reason
    assert "µs compiled" in graph.reason
    assert "runs eagerly from here" in caplog.text
    assert plait.report(fast).eager_graphs


def test_what_is_faster_compiled_stays_so():
    def program(x):
        for _ in range(12):
            x = torch.tanh(x * 1.5 + 1) - 0.5
        return x

    fast, x = raced(program), torch.randn(400, 400)
    for _ in range(CALLS):
        torch.testing.assert_close(fast(x), program(x))
    (graph,) = plait.report(fast).graphs
    assert graph.outcome == "compiled"
    assert "µs eager" in graph.race


@pytest.mark.parametrize("kind", ["changes", "draws", "trains", "views"])
def test_what_a_second_run_would_change_is_not_timed(slowed, kind):
    def program(x, total):
        if kind == "changes":
            total += 1
        if kind == "draws":
            x = torch.nn.functional.dropout(x, 0.5)
        return x[1:] if kind == "views" else x * 2 + total

    x = torch.randn(20, requires_grad=kind == "trains")
    fast, total, plain = raced(program), torch.zeros(()), torch.zeros(())
    for seed in range(CALLS):
        torch.manual_seed(seed)
        found = fast(x, total)
        torch.manual_seed(seed)
        torch.testing.assert_close(found, program(x, plain))
    assert torch.equal(total, plain)
    graph = plait.report(fast).graphs[0]
    assert graph.outcome == "compiled"
    assert graph.race is None


def test_errors_of_timed_calls_are_eagers():
    fast, x = raced(lambda x, places: x[places] * 2), torch.randn(3)
    fast(x, torch.tensor([1]))
    with pytest.raises(IndexError, match="out of"):
        fast(x, torch.tensor([7]))
    torch.testing.assert_close(fast(x, torch.tensor([2])), x[2:] * 2)


def times(ours, theirs):
    """A race over calls that take these seconds."""
    now, race = [0.0], Race("f")

    def taking(values, name):
        values = iter([1.0, *values])

        def run(*inputs):
            now[0] += next(values)
            return name

        return run

    racing = Racing(taking(ours, "ours"), taking(theirs, "theirs"), race, lambda: now[0])
    found = {racing() for _ in range(len(ours) + 1)}
    assert found == {"ours"}  # all along the caller gets the program's results
    return race


@pytest.mark.parametrize(
    ("ours", "theirs", "slower"),
    [
        ([1.0] * 5, [1.1] * 5, False),  # five of five for the program: no more are needed
        ([1.2] * 12, [1.0] * 12, True),
        ([1.04] * 12, [1.0] * 12, False),  # within the margin
        ([1.2] * 9 + [0.9] * 3, [1.0] * 12, False),  # not often enough
        ([1.0, 9.0] * 6, [1.02] * 12, False),  # a few calls that something else held up
        ([1.2] * 4, [1.0] * 4, None),
    ],
)
def test_noise_decides_nothing(ours, theirs, slower):
    assert times(ours, theirs).is_slower is slower
