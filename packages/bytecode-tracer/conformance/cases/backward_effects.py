"""What `backward` in traced code does: to `.grad`, to graphs and histories, to hooks."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t


def _positions():
    return [(t(3, 2),), (t(4, 2, start=0.5),), (t(3, 2, start=-2),)]


@scenario(lambda state: _positions())
def forces_from_energy():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(made.parameters(), lr=0.01)

    def step(positions):
        positions = positions.detach().clone().requires_grad_()
        energy = made(positions.square().sum(-1, keepdim=True)).sum()
        (gradient,) = torch.autograd.grad(energy, positions, create_graph=True)
        loss = gradient.square().mean() + energy.square()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), -gradient.detach(), positions.grad

    return step, made


def _leaves():
    return [(t(3, grad=True), t(3, grad=True)), (t(2, grad=True), t(2)), (t(3), t(3, grad=True))]


@case(_leaves)
def one_gradient_for_two_leaves(x, y):
    (x + y).square().sum().backward()
    first, second = x.grad, y.grad
    if first is not None and second is not None:
        first.add_(1)
    return first, second


@case(_leaves)
def gradients_that_are_views_of_one(x, y):
    (x.view(1, -1) + y.view(1, -1)).square().sum().backward()
    if x.grad is not None and y.grad is not None:
        x.grad.add_(1)
    return x.grad, y.grad


@case(lambda: [(t(3, grad=True), t(3)), (t(2, grad=True), t(2))])
def gradient_that_is_given(x, g):
    x.view(-1).backward(g)
    x.grad.mul_(2)
    return x.grad, g


@case(lambda: [(t(3, grad=True), t(3)), (t(2, grad=True), t(2))])
def backward_from_a_leaf(x, g):
    x.backward(g)
    x.backward(g)
    return x.grad, g


def _laid_out():
    a = t(2, 3, grad=True)
    b = t(2, 3).t().requires_grad_()
    c = t(2, 1, 3).expand(2, 2, 3).requires_grad_()
    d = t(6, 4)[::2].requires_grad_()
    return [(a,), (b,), (c,), (d,)]


@case(_laid_out)
def layouts_of_gradients(x):
    x.sum().backward()
    first = x.grad.stride()
    x.grad = None
    (x.transpose(0, -1) ** 2).sum().backward()
    return first, x.grad.stride(), x.grad


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)])
def second_pass_raises(x):
    y = x.exp().sum()
    y.backward()
    y.backward()


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)], then=lambda r: r.sum().backward())
def graph_is_freed_for_the_caller(x):
    y = x.exp()
    y.sum().backward()
    return y


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)], then=lambda r: r[0].sum().backward())
def graph_is_kept_for_the_caller(x):
    y = x.exp()
    y.sum().backward(retain_graph=True)
    return y, x.grad


@case(lambda: [(t(3, grad=True) * 2, t(3)), (t(2, grad=True), t(2))])
def history_from_before(x, y):
    loss = (x * y).sum()
    loss.backward()
    return x.is_leaf


def _hooked(state):
    state.clear()
    for number in range(3):
        x = t(3, grad=True)
        if number == 1:
            x.register_hook(lambda g: state.append("hook") or g * 2)
        if number == 2:
            x.register_post_accumulate_grad_hook(lambda p: state.append("after"))
        yield (x,)


@scenario(_hooked)
def hooks_from_before():
    seen = []

    def step(x):
        (x * x).sum().backward()
        return x.grad

    return step, seen


@case(lambda: [(t(3, grad=True), t(3)), (t(2, grad=True), t(2))])
def gradient_that_nothing_gives(x, y):
    z = (x.detach() * y).sum() + 0 * x.new_ones(1, requires_grad=True)
    z.sum().backward()
    return x.grad


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)])
def under_no_grad(x):
    loss = x.square().sum()
    with torch.no_grad():
        loss.backward()
        x.grad.mul_(0.5)
        x -= x.grad
        x.grad = None
    return loss, x


@case(lambda: [(nn.Embedding(5, 3, sparse=s), torch.tensor([1, 2, 1])) for s in (False, True)])
def rows_of_a_table(table, rows):
    table(rows).square().sum().backward()
    return table.weight.grad


def _with_gradients():
    for kind in ("none", "other", "leaf", "history"):
        x = t(3, grad=True)
        if kind == "other":
            x.grad = t(3, start=3)
        if kind == "leaf":
            x.grad = t(3, grad=True)
        if kind == "history":
            x.grad = t(3, grad=True) * 2
        yield (x,)


@case(_with_gradients)
def added_to_what_is_there(x):
    old = x.grad
    x.square().sum().backward()
    return x.grad, x.grad is old, x.grad.requires_grad


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)])
def backward_by_the_class(x):
    torch.Tensor.backward((x * 3).sum())
    torch.autograd.backward((x * 3).sum())
    return x.grad


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)])
def backward_with_a_graph_of_gradients(x):
    (x**3).sum().backward(create_graph=True)
    return x.grad.requires_grad


@case(lambda: [(t(3, grad=True), True), (t(3, grad=True), False), (t(2, grad=True), True)])
def leaf_of_the_call_leaves(x, with_gradient):
    w = torch.ones_like(x).requires_grad_()
    loss = (w * x.detach()).sum()
    if with_gradient:
        loss.backward()
    return w


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)])
def break_after_the_backward(x):
    w = torch.ones_like(x).requires_grad_()
    (w * x).square().sum().backward()
    len(str(x.sum().item()))
    w.grad.add_(1)
    return w, w.grad, x.grad


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)])
def hook_in_the_graph(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * 3)
    y.square().sum().backward()
    return x.grad


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)])
def hook_that_gives_what_is_there(x):
    other = x.detach() + 1
    y = x * 1
    y.register_hook(lambda gradient: other)
    y.sum().backward()
    x.grad.mul_(2)
    return x.grad, other


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)])
def hook_of_the_argument(x):
    seen = []
    x.register_hook(lambda gradient: seen.append(1) or gradient * 3)
    x.square().sum().backward()
    return x.grad, seen


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)])
def hook_of_the_argument_later(x):
    seen = []
    x.square().sum().backward()
    x.register_hook(lambda gradient: seen.append(1) or gradient * 3)
    x.square().sum().backward()
    return x.grad, seen
