"""Gradients computed inside traced code, by `backward` and `grad`: as eager has it."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t
from conformance.gradients import go_backward, needing_gradients, some_needing_gradients


@case(needing_gradients)
def backward_inside(x):
    y = (x * 2).sum()
    y.backward()
    return y, x.grad


@case(needing_gradients)
def backward_between_operations(x):
    y = x.sin()
    y.sum().backward()
    return y * 2 + x.grad, x.grad.clone()


@case(needing_gradients)
def backward_twice_accumulates(x):
    (x * 2).sum().backward()
    (x * x).sum().backward()
    return x.grad


@case(needing_gradients)
def backward_with_gradient(x):
    y = x * x
    y.backward(torch.ones_like(y) * 2, retain_graph=True)
    y.backward(gradient=torch.ones_like(y))
    return x.grad


@case(needing_gradients)
def backward_without_graph_raises(x):
    y = (x * x).sum()
    y.backward()
    try:
        y.backward()
    except RuntimeError as error:
        return "a second time" in str(error), x.grad
    return x.grad


@case(lambda: [(t(3, grad=True), t(3, grad=True)), (t(3, grad=True), t(3))])
def backward_to_inputs(x, y):
    z = (x * y).sum()
    z.backward(inputs=[x])
    return x.grad, y.grad


@case(some_needing_gradients)
def backward_where_nothing_requires(x):
    y = (x * 2).sum()
    if not y.requires_grad:
        return y
    torch.autograd.backward([y], [torch.tensor(2.0)])
    return x.grad


@case(needing_gradients)
def grad_of_local_leaf(x):
    w = torch.ones(x.shape, requires_grad=True)
    loss = (x.detach() * w * w).sum()
    loss.backward()
    return w.grad, w


@case(needing_gradients)
def gradient_cleared_and_taken_again(x):
    (x * 2).sum().backward()
    first = x.grad
    x.grad = None
    (x * 3).sum().backward()
    return first, x.grad


@case(needing_gradients)
def gradient_changed_in_place(x):
    (x * 2).sum().backward()
    x.grad.mul_(3).add_(1)
    x.grad.zero_()
    x.grad += 4
    return x.grad


@case(needing_gradients)
def gradient_penalty(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    penalty = (g.norm() - 1) ** 2
    return penalty, torch.autograd.grad(penalty, x)[0]


@case(needing_gradients)
def grad_of_several(x):
    a, b = x * 2, x.sin()
    one, two = torch.autograd.grad([a.sum(), b.sum()], [a, b])
    none = torch.autograd.grad(a.sum(), [x, torch.ones(1, requires_grad=True)], allow_unused=True)
    return one, two, none


@case(needing_gradients)
def grad_with_missing_input_raises(x):
    try:
        return torch.autograd.grad(x.sum(), torch.ones(2, requires_grad=True))
    except RuntimeError as error:
        return "unused" in str(error) or "used in the graph" in str(error)


@case(needing_gradients)
def batched_gradients(x):
    y = x * x
    eye = torch.eye(x.shape[0])
    return torch.autograd.grad(y, x, eye, is_grads_batched=True)[0]


@case(needing_gradients)
def functional_jacobian(x):
    inner = x.detach()
    jacobian = torch.autograd.functional.jacobian(lambda v: v * v, inner)
    return jacobian, torch.autograd.functional.hvp(lambda v: (v**3).sum(), inner, inner)[1]


@scenario(lambda made: [(t(2, 3),), (t(4, 3),), (t(2, 3),)])
def training_step_with_method_backward():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model


@scenario(lambda made: [(t(2, 3),), (t(4, 3),), (t(2, 3),)])
def accumulated_and_clipped():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)

    def step(x):
        for part in x.split(1):
            model(part).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        return norm

    return step, model


@case(needing_gradients)
def saved_tensors_packed(x):
    seen = []

    def pack(value):
        seen.append(value.shape)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        y = x * x
    return y, seen


@case(needing_gradients)
def graph_walked(x):
    y = (x * 2).sin()
    return y.grad_fn.name(), [type(f).__name__ for f, _ in y.grad_fn.next_functions]


@case(needing_gradients)
def anomaly_inside(x):
    with torch.autograd.detect_anomaly(check_nan=False):
        y = (x * 2).sum()
    return y


@case(needing_gradients)
def backward_under_no_grad_raises(x):
    with torch.no_grad():
        y = (x * 2).sum()
    try:
        y.backward()
    except RuntimeError as error:
        return "does not require grad" in str(error)
    return y


@case(needing_gradients, then=go_backward)
def gradient_reversal(x):
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.view_as(value)

        @staticmethod
        def backward(ctx, grad):
            return -grad

    return Reverse.apply(x) * 2


@case(needing_gradients, then=go_backward)
def straight_through(x):
    hard = (x > 0).float()
    return hard + x - x.detach()


def _fresh():
    return [(t(3),), (t(2),), (t(3, grad=True),), (t(3, start=0.5),)]


@case(_fresh, then=go_backward)
def forces(x):
    x.requires_grad = True
    energy = torch.tanh(x * 2).square().sum()
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    return force * energy
