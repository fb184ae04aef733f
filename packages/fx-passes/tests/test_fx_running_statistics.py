"""Running statistics of batch norm, which autograd saves and does not see changing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import trace
from test_fx_training import compiled

from plait_fx_passes import to_aten, to_joint, wrap_runtime


def inputs(dim):
    torch.manual_seed(0)
    sizes = (5, 3, *(4, 4)[: dim - 2])
    like = {"dtype": torch.float64}
    x = torch.randn(sizes, **like).requires_grad_()
    rest = [torch.randn(3, **like).requires_grad_() for _ in range(2)]
    return [x, *rest, torch.randn(3, **like), torch.rand(3, **like) + 0.5]


def norm(train):
    def program(x, weight, bias, mean, var):
        h = torch.tanh(x) * weight.sum()
        return F.batch_norm(h, mean, var, weight, bias, train, 0.3).exp()

    return program


def step(x, mean, var):
    return F.batch_norm(x, mean, var, None, None, True, 0.5)


@pytest.mark.parametrize("dim", [2, 3, 4])
def test_a_later_call_in_training_changes_what_the_backward_reads(dim):
    """Eager's backward takes the statistics as they are by then, and does not raise."""
    found = []
    example = inputs(dim)
    with torch.no_grad():
        graph = to_aten(trace(step), [example[0], *example[3:]])
    written = wrap_runtime(graph, graph.module())
    pairs = ((norm(False), step), (compiled(norm(False), inputs(dim)), written))
    for run, later in pairs:
        given = inputs(dim)
        out = run(*given)
        with torch.no_grad():
            later(given[0] * 3 + 1, *given[3:])
        found.append(torch.autograd.grad(out.sum(), given[:3]))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("train", [True, False])
def test_their_changes_are_not_counted(train):
    program = norm(train)
    joint = to_joint(trace(program), inputs(2))
    graph = to_aten(trace(program), inputs(2))
    for each in (joint.program, graph):
        assert [m.input for m in each.mutations] == ([3, 4] if train else [])
        assert not any(m.counted for m in each.mutations)


def test_other_changes_are():
    def program(x, mean, var):
        made = F.batch_norm(x, mean, var, None, None, True, 0.5)
        mean.add_(1)
        return made

    with torch.no_grad():
        graph = to_aten(trace(program), [torch.randn(5, 3), torch.zeros(3), torch.ones(3)])
    assert {m.input: m.counted for m in graph.mutations} == {1: True, 2: False}
