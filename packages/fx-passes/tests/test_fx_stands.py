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


@pytest.mark.parametrize("has_history", [False, True])
def test_an_input_whose_elements_share_memory_gets_gradients_of_its_own_geometry(has_history):
    def second(run):
        leaf = torch.linspace(-1, 1, 3, dtype=torch.float64).requires_grad_()
        x = leaf * 1 if has_history else leaf
        rows = x.expand(2, 3)
        y = run(rows)
        with torch.no_grad():
            x.mul_(5)
        (first,) = torch.autograd.grad((y * y).sum(), leaf, create_graph=True)
        return torch.autograd.grad((first * first).sum(), leaf)[0]

    def program(x):
        return x.flip(0).exp()

    example = torch.zeros(3, dtype=torch.float64, requires_grad=True).expand(2, 3)
    run = wrapped(torch.fx.symbolic_trace(program), [example])
    torch.testing.assert_close(second(run), second(program))


def test_what_asks_for_an_inputs_shape_alone_does_not_read_it():
    """The mask of a dropout is drawn for a shape; eager saves the mask, and not the input."""

    def second(run):
        torch.manual_seed(0)
        leaf = torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_()
        x = leaf * 1
        y = run(x)
        with torch.no_grad():
            x.mul_(5)
        (first,) = torch.autograd.grad((y * y).sum(), leaf, create_graph=True)
        return torch.autograd.grad((first * first).sum(), leaf)[0]

    def program(x):
        return torch.dropout(x, 0.5, True)

    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.dropout, (graph.placeholder("x"), 0.5, True)))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    run = wrapped(module, [torch.zeros(6, dtype=torch.float64, requires_grad=True)])
    torch.testing.assert_close(second(run), second(program))


def test_second_gradients_of_a_view_that_is_returned_beside_what_is_detached():
    def program(x):
        made = x.sin()
        return made.detach(), made.movedim(0, -1)

    def second(run):
        leaf = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
        _, y = run(leaf)
        (first,) = torch.autograd.grad((y * y).sum(), leaf, create_graph=True)
        return torch.autograd.grad((first * first).sum(), leaf)[0]

    example = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    run = wrapped(torch.fx.symbolic_trace(program), [example])
    torch.testing.assert_close(second(run), second(program))
