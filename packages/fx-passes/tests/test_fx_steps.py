"""Programs that differentiate inside: whole training steps, and losses on forces."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import trace
from test_fx_training import assert_same, both, leaf, plain

from plait_fx_passes import AtenTraceError, run_passes, to_aten, to_joint, verify, wrap_runtime


def stepped(x, weight, bias):
    """A step of gradient descent that returns its loss."""
    loss = F.mse_loss(torch.tanh(x @ weight) + bias, x)
    of_weight, of_bias = torch.autograd.grad(loss, [weight, bias])
    weight.detach().add_(of_weight, alpha=-0.1)
    bias.detach().add_(of_bias, alpha=-0.1)
    return loss


def compiled(program, inputs):
    gm = trace(program)
    joint = to_joint(gm, inputs)
    assert joint.tangents == ()
    graph = run_passes(joint.program, verify_each=True)
    verify(graph)
    return wrap_runtime(graph, graph.module())


def test_a_step_is_one_graph_without_tangents():
    wanted_inputs = [plain(5, 3), leaf(3, 3), leaf(3)]
    inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in wanted_inputs]
    run = compiled(stepped, inputs)
    for _ in range(3):
        loss, wanted = run(*inputs), stepped(*wanted_inputs)
        torch.testing.assert_close(loss, wanted)
        assert loss.requires_grad
        assert not loss.is_leaf
    torch.testing.assert_close(inputs, wanted_inputs)
    messages = []
    for each in (loss, wanted):
        with pytest.raises(RuntimeError, match="a second time") as caught:
            each.backward()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_step_without_gradients_outside_is_recorded_for_inference_too():
    inputs = [plain(5, 3), leaf(3, 3), leaf(3)]
    graph = to_aten(trace(stepped), inputs)
    assert graph.spent == (0,)
    assert [(each.input, each.grad) for each in graph.mutations] == [(1, False), (2, False)]
    assert [node.name for node in graph.placeholders] == ["x", "weight", "bias"]


def test_what_is_spent_and_what_is_not():
    def program(x, y):
        used = x.exp()
        (gradient,) = torch.autograd.grad(used.sum(), [x])
        return used, used.sum(0), x * y, gradient, x + 1

    inputs = [leaf(3, 2), plain(3, 2)]
    joint = to_joint(trace(program), inputs)
    assert joint.program.spent == (0, 1)
    assert len(joint.tangents) == 2  # of x * y and x + 1

    def apart(x, y):
        return program(x, y)[2:]

    def make():
        return both(leaf(3, 2), plain(3, 2))

    assert_same(apart, make)


def test_a_kept_graph_goes_backward_again():
    def program(x):
        y = x.exp()
        (gradient,) = torch.autograd.grad(y.sum(), [x], retain_graph=True)
        return y * 2, gradient

    assert_same(program, lambda: both(leaf(3)), twice=True)


def test_a_loss_on_forces_has_second_derivatives():
    def energies(positions, weight, out):
        distances = (positions[:, None] - positions[None]).square().sum(-1)
        return (torch.tanh(distances[..., None] * weight) @ out).sum()

    def program(positions, weight, out, wanted):
        energy = energies(positions, weight, out)
        (gradient,) = torch.autograd.grad(energy, [positions], create_graph=True)
        return energy, (gradient + wanted).square().mean()

    def make():
        return both(leaf(4, 3), leaf(6), leaf(6), plain(4, 3))

    assert_same(program, make)
    assert_same(program, make, twice=True)


def test_dropout_is_drawn_once_for_both():
    def program(x, weight):
        y = F.dropout(x @ weight, 0.5)
        (gradient,) = torch.autograd.grad(y.square().sum(), [weight])
        return y.detach(), gradient

    inputs = [plain(4, 3), leaf(3, 3)]
    run = compiled(program, inputs)
    torch.manual_seed(3)
    wanted = program(*inputs)
    torch.manual_seed(3)
    torch.testing.assert_close(run(*inputs), wanted)


def test_an_input_that_changes_its_geometry_may_be_part_of_a_step():
    def program(x, y):
        (gradient,) = torch.autograd.grad((x * x).sum(), [x])
        y.t_()
        return gradient

    inputs = [leaf(3), plain(2, 3)]
    run = compiled(program, inputs)
    torch.testing.assert_close(run(*inputs), inputs[0] * 2, check_stride=False)
    assert inputs[1].shape == (3, 2)


def test_nothing_of_a_step_is_recorded_by_autograd():
    def program(x, weight):
        y = x @ weight
        (gradient,) = torch.autograd.grad(y.square().sum(), [weight])
        return gradient, y.detach() @ weight.detach(), y.sum()

    inputs = [plain(4, 3), leaf(3, 3)]
    run = compiled(program, inputs)
    seen = [(each.requires_grad, each.is_leaf) for each in run(*inputs)]
    assert seen == [(each.requires_grad, each.is_leaf) for each in program(*inputs)]


def test_leaves_that_a_program_makes_are_leaves():
    def program(x):
        made = torch.ones_like(x).requires_grad_()
        (gradient,) = torch.autograd.grad((made * x).sum(), [made])
        return made, gradient

    run = compiled(program, [plain(3)])
    made, gradient = run(plain(3))
    assert made.is_leaf
    assert made.requires_grad
    assert not gradient.requires_grad

    def used(x):
        made = torch.ones_like(x).requires_grad_()
        return made, made * x

    with pytest.raises(AtenTraceError, match="a leaf that it has made"):
        to_joint(trace(used), [leaf(3)])
