"""Gradients that are differentiated themselves, inside traced code and after it."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from conformance.declare import case, scenario, t


def _pairs():
    return [
        (t(3, grad=True), t(3, grad=True, start=0.5)),
        (t(2, grad=True), t(2, grad=True)),
        (t(3, grad=True), t(3)),
        (t(3), t(3, grad=True)),
    ]


def _both():
    return [(t(3, grad=True), t(3, grad=True, start=0.5)), (t(2, grad=True), t(2, grad=True))]


def _backward(result):
    parts = result if isinstance(result, tuple | list) else [result]
    parts = [each for each in parts if isinstance(each, torch.Tensor) and each.requires_grad]
    if parts:
        sum(each.sin().sum() for each in parts).backward()


def _energy(x, w):
    return (x * w).sin().sum() + (w * w * x).sum()


# By torch.autograd.grad.


@case(_both, then=_backward)
def grad_that_is_returned(x, w):
    (first,) = torch.autograd.grad(_energy(x, w), x, create_graph=True)
    return first, first.requires_grad, first.is_leaf


@case(_both)
def grad_of_grad_of_grad(x, w):
    (first,) = torch.autograd.grad(_energy(x, w), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), w, create_graph=True)
    return torch.autograd.grad(second.exp().sum(), [x, w])


@case(_pairs)
def penalty_on_what_needs_gradients(x, w):
    energy = _energy(x, w)
    wanted = [each for each in (x, w) if each.requires_grad]
    firsts = torch.autograd.grad(energy, wanted, create_graph=True)
    (energy + sum(first.square().sum() for first in firsts)).backward()
    return energy.detach(), x.grad, w.grad


@case(_both)
def grad_kept_but_not_made(x, w):
    energy = _energy(x, w)
    (first,) = torch.autograd.grad(energy, x, retain_graph=True)
    energy.backward()
    return first.requires_grad, x.grad, w.grad


# By backward(create_graph=True).


@case(_pairs, then=_backward)
def backward_that_makes_a_graph(x, w):
    _energy(x, w).backward(create_graph=True)
    return x.grad, w.grad, [None if g is None else g.requires_grad for g in (x.grad, w.grad)]


@case(_both)
def backward_through_gradients_of_leaves(x, w):
    _energy(x, w).backward(create_graph=True)
    first = x.grad
    x.grad = w.grad = None
    first.square().sum().backward()
    return first.detach(), x.grad, w.grad


@case(_both)
def backward_into_gradients_that_have_a_graph(x, w):
    _energy(x, w).backward(create_graph=True)
    x.grad.square().sum().backward()
    return x.grad.detach(), w.grad.detach(), x.grad.requires_grad


@case(_both, then=_backward)
def backward_twice_with_graphs(x, w):
    _energy(x, w).backward(create_graph=True)
    first = x.grad
    (x * w).cos().sum().backward(create_graph=True)
    return first, x.grad, x.grad is first, w.grad


@case(_both, then=_backward)
def backward_with_a_graph_after_one_without(x, w):
    _energy(x, w).backward()
    first = x.grad
    (x * w).cos().sum().backward(create_graph=True)
    return first.requires_grad, x.grad is first, x.grad, w.grad


@case(_both)
def backward_of_a_linear_program_makes_none(x, w):
    (x * 2 + w).sum().backward(create_graph=True)
    return x.grad, x.grad.requires_grad, w.grad


@case(_both, then=_backward)
def backward_to_chosen_inputs_with_a_graph(x, w):
    _energy(x, w).backward(create_graph=True, inputs=[w])
    return x.grad, w.grad


@case(_both)
def backward_of_an_intermediate_with_gradients(x, w):
    y = x * w * x
    y.backward(w.detach() * 2, create_graph=True)
    total = x.grad.sum()
    x.grad = None
    total.backward()
    return x.grad, w.grad.detach()


@case(_both)
def backward_with_a_graph_and_no_gradients_around(x, w):
    energy = _energy(x, w)
    with torch.no_grad():
        energy.backward(create_graph=True)
        enabled = torch.is_grad_enabled()
    return x.grad.requires_grad, enabled


def _model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        model(x).square().mean().backward(create_graph=True)
        norms = sum(p.grad.square().sum() for p in model.parameters())
        optimizer.zero_grad()
        norms.backward()
        optimizer.step()
        return norms.detach(), [p.grad for p in model.parameters()]

    return step, model


@scenario
def gradient_norms_as_a_loss(compiled):
    step, model = _model()
    run = compiled(step)
    seen = [run(t(2, 3)) for _ in range(3)]
    return seen, list(model.parameters())


# Functions of the program.


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w * w, grad * 2 * x * w


class _Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y


class _Frozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.factor = x.detach() * 3
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


@case(_both, then=_backward)
def function_whose_formula_uses_inputs(x, w):
    (first,) = torch.autograd.grad(_Product.apply(x, w).sum(), x, create_graph=True)
    return first, first.requires_grad


@case(_both)
def leaves_that_only_a_formula_reaches(x, w):
    (first,) = torch.autograd.grad(_Product.apply(x, w).sum(), x, create_graph=True)
    (first.sum() + x.sin().sum()).backward()
    return x.grad, w.grad


@case(_both)
def function_whose_formula_uses_its_result(x, w):
    (first,) = torch.autograd.grad(_Exp.apply(x * w).sum(), x, create_graph=True)
    first.square().sum().backward()
    return first.detach(), x.grad, w.grad


@case(_both)
def function_whose_formula_uses_neither(x, w):
    (first,) = torch.autograd.grad(_Frozen.apply(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((_Frozen.apply(x) * w).sum(), x, create_graph=True)
    return first.requires_grad, second.requires_grad


@case(_both, then=_backward)
def function_in_a_pass_that_makes_a_graph(x, w):
    (_Product.apply(x, w) + _Exp.apply(w)).sum().backward(create_graph=True)
    return x.grad, w.grad


@case(_both)
def function_that_is_differentiable_once(x, w):
    (first,) = torch.autograd.grad((_Once.apply(x) * w).sum(), x, create_graph=True)
    needs = first.requires_grad
    first.sum().backward()
    return needs


@case(_both, then=_backward)
def function_that_is_differentiable_once_and_is(x, w):
    return _Once.apply(x) * w


# Around and after.


@case(_both)
def second_gradients_through_a_checkpoint(x, w):
    y = checkpoint(lambda x: (x * w).sin() * x, x, use_reentrant=False)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    first.square().sum().backward()
    return x.grad, w.grad


@case(_both)
def graph_that_is_not_kept(x, w):
    h = (x * w).exp()
    (first,) = torch.autograd.grad(h.sin().sum(), x, retain_graph=False, create_graph=True)
    return torch.autograd.grad(first.sum(), w)


@case(_both)
def what_needs_no_gradients_cannot_be_differentiated(x, w):
    (first,) = torch.autograd.grad((x * 2).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), w)
