"""What kernels move, compute and take, by the report."""

from __future__ import annotations

import pytest
import torch

import plait


def program(x, y):
    return torch.softmax(x * 2 + y, -1), (x.t() @ y).relu(), x[torch.tensor([1, 2, 0])]


@pytest.fixture
def fast():
    made = plait.compile(program, options={"own_products": False})
    made(*torch.randn(2, 64, 64))
    return made


def test_kernels_tell_what_they_move(fast):
    (graph,) = plait.report(fast).graphs
    assert {fact.name for fact in graph.roofline} == set(graph.kernels)
    moved = {fact.bytes_moved for fact in graph.roofline}
    assert {3 * 64 * 64 * 4, 2 * 64 * 64 * 4} <= moved
    assert list(graph.roofline) == sorted(graph.roofline, key=lambda fact: -fact.bytes_moved)
    assert all(fact.share is None for fact in graph.roofline)
    text = str(plait.report(fast))
    assert "49,152 bytes, " in text
    assert "copy speed" not in text


def test_kernels_are_timed_when_asked(fast):
    report = plait.report(fast, measure=True)
    (graph,) = report.graphs
    for fact in graph.roofline:
        assert 0 < fact.seconds < 1
        assert fact.share == fact.copy_seconds / fact.seconds
        assert f"{fact.share:.0%} of copy speed" in str(report)


def test_launches_of_one_kernel_are_counted():
    """Layers are one kernel, launched for each."""

    def layers(x, weights):
        for weight in weights:
            x = torch.tanh(x @ weight) * 2
        return x

    made = plait.compile(layers)
    made(torch.randn(64, 64), [torch.randn(64, 64) for _ in range(5)])
    (graph,) = plait.report(made, measure=True).graphs
    assert sum(fact.launches for fact in graph.roofline) == graph.launches == 5
    assert any(f" ×{fact.launches}: " in str(fact) for fact in graph.roofline)


def test_programs_in_python_are_not_timed():
    made = plait.compile(program, backend="python")
    made(*torch.randn(2, 64, 64))
    (graph,) = plait.report(made, measure=True).graphs
    assert graph.roofline
    assert all(fact.seconds is None for fact in graph.roofline)
