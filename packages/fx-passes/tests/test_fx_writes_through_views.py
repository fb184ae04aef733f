"""What autograd frees, and has saved, inside of writes through views."""

from __future__ import annotations

import pytest
import torch

from plait_fx_passes import runner
from plait_fx_passes.tools.compiling import compile_with


def compiled(program, example):
    module = torch.fx.symbolic_trace(program)
    return compile_with(module, [example], lambda graph, kind: runner(graph))


def history():
    leaf = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
    return leaf, leaf + 1


def add_to_part(x):
    y = x + 0
    y[:1].add_(1)
    return y


def exponential_of_part(x):
    x[:1].exp_()
    return x + 0


@pytest.mark.parametrize("program", [add_to_part, exponential_of_part])
def test_a_second_backward_raises(program):
    for run in (program, compiled(program, history()[1])):
        leaf, x = history()
        y = run(x)
        torch.autograd.grad(y.sum(), leaf)
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.grad(y.sum(), leaf)


@pytest.mark.parametrize("method", ["exp_", "neg_"])
def test_a_change_of_what_was_saved_inside_raises(method):
    """`exp_` saves what it has written, `neg_` nothing."""

    def program(x):
        getattr(x[:1], method)()
        return x + 0

    for run in (program, compiled(program, history()[1])):
        leaf, x = history()
        y = run(x)
        with torch.no_grad():
            x.mul_(2)
        if method == "neg_":
            assert torch.autograd.grad(y.sum(), leaf)[0][0, 0] == -1
            continue
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(y.sum(), leaf)
