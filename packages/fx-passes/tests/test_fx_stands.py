"""Gradients of gradients, of inputs that were changed since the program ran."""

from __future__ import annotations

import pytest
import torch

from plait_fx_passes import partition, run_passes, to_joint, wrap_training


def wrapped(module, inputs, known=None):
    recorded = to_joint(module, inputs)
    joint = recorded.replace_graph(run_passes(recorded.flat()).graph)
    if known is not None:
        joint = known.used_in(joint)
    parts = partition(joint)
    return wrap_training(
        joint,
        parts,
        parts.forward.module(),
        parts.backward.module(),
        module,
        compile_gradients=lambda made: wrapped(made.program, made.examples, made.known),
    )


def multiply(x):
    x.mul_(5)


def unsqueeze(x):
    with torch.no_grad():
        x.unsqueeze_(0)


def transpose(x):
    x.t_()


@pytest.mark.parametrize("change", [multiply, unsqueeze, transpose])
@pytest.mark.parametrize(
    "program", [lambda x: x.exp(), lambda x: x.softmax(-1), lambda x: x.sigmoid() * 2]
)
def test_gradients_go_where_the_input_came_from(program, change):
    """Eager has saved the result: it knows nothing of what became of the input."""

    def second(run):
        leaf = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
        x = leaf * 1
        y = run(x)
        change(x)
        (first,) = torch.autograd.grad((y * y).sum(), leaf, create_graph=True)
        return torch.autograd.grad((first * first).sum(), leaf)[0]

    example = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    run = wrapped(torch.fx.symbolic_trace(program), [example])
    torch.testing.assert_close(second(run), second(program))


def test_a_leaf_of_another_geometry_gets_gradients_of_the_old_one():
    def second(run):
        leaf = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
        y = run(leaf)
        (first,) = torch.autograd.grad((y * y).sum(), leaf, create_graph=True, retain_graph=True)
        unsqueeze(leaf)
        again = torch.autograd.grad((y * y).sum(), leaf, create_graph=True)[0]
        return first, again

    example = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    run = wrapped(torch.fx.symbolic_trace(lambda x: x.exp()), [example])
    for one, other in zip(second(run), second(lambda x: x.exp()), strict=True):
        torch.testing.assert_close(one, other)
