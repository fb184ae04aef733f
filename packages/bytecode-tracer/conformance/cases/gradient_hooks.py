"""Hooks that see gradients, of every kind: on tensors, parameters, nodes and modules."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t
from conformance.gradients import go_backward, needing_gradients, some_needing_gradients


@case(needing_gradients, then=go_backward)
def hook_on_argument(x):
    x.register_hook(lambda grad: grad * 2)
    return (x * 3).sum()


@case(lambda: [(t(3, grad=True), []), (t(2, grad=True), [])], then=go_backward)
def hook_on_argument_records(x, seen):
    handle = x.register_hook(lambda grad: seen.append(grad.shape))
    return (x * 3).sum(), handle.id is not None


@case(needing_gradients, then=go_backward)
def hook_removed_inside(x):
    y = x * 2
    handle = y.register_hook(lambda grad: grad * 100)
    z = y + 1
    handle.remove()
    return z


@case(needing_gradients, then=go_backward)
def hook_in_with_block(x):
    y = x * 2
    with y.register_hook(lambda grad: grad * 100):
        z = y * 2
    return z


@case(needing_gradients, then=go_backward)
def hooks_on_one_tensor(x):
    y = x * 2
    y.register_hook(lambda grad: grad + 1)
    y.register_hook(lambda grad: grad * 3)
    y.register_hook(lambda grad: None)
    return y * 5


@case(some_needing_gradients)
def hook_on_tensor_without_grad(x):
    try:
        x.register_hook(lambda grad: grad)
    except RuntimeError as error:
        return str(error)
    return x


@case(needing_gradients, then=go_backward)
def post_accumulate_hook(x):
    def double(leaf):
        leaf.grad *= 2

    x.register_post_accumulate_grad_hook(double)
    return (x * 3).sum()


@case(needing_gradients)
def post_accumulate_hook_on_intermediate(x):
    y = x * 2
    try:
        y.register_post_accumulate_grad_hook(lambda leaf: None)
    except RuntimeError as error:
        return type(error).__name__
    return y


@scenario(lambda made: [(t(2, 3),), (t(4, 3),), (t(2, 3),)], then=go_backward)
def hooks_on_parameters_inside():
    torch.manual_seed(0)
    made, seen = nn.Linear(3, 2), []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.handles, self.seen = made, [], seen

        def forward(self, x):
            for handle in self.handles:
                handle.remove()
            self.handles = [
                p.register_hook(lambda grad, n=n: seen.append((n, grad.shape)) or grad * 2)
                for n, p in self.inner.named_parameters()
            ]
            return self.inner(x).sum()

    model = Model()
    return model, model


@case(needing_gradients, then=go_backward)
def hook_with_closure_over_result(x):
    scale = x.detach().abs() + 1
    y = x * 2
    y.register_hook(lambda grad: grad * scale)
    return y.sin()


@case(needing_gradients, then=go_backward)
def hook_in_called_function(x):
    def scaled(value, factor):
        value.register_hook(lambda grad: grad * factor)
        return value

    return scaled(x * 2, 3) + scaled(x * 4, 5)


@case(lambda: [(t(3, grad=True), 2), (t(3, grad=True), 3), (t(2, grad=True), 2)], then=go_backward)
def gradient_scaled_by_hook(x, factor):
    y = x.sin()
    if y.requires_grad:
        y.register_hook(lambda grad: grad / factor)
    return y


class Clip:
    def __init__(self, limit):
        self.limit = limit
        self.count = 0

    def __call__(self, grad):
        self.count += 1
        return grad.clamp(-self.limit, self.limit)


@case(lambda: [(t(3, grad=True), Clip(1)), (t(3, grad=True), Clip(2))], then=go_backward)
def hook_that_is_an_object(x, clip):
    y = x * 3
    y.register_hook(clip)
    return y * 2, clip


@case(needing_gradients, then=go_backward)
def hook_on_node(x):
    y = x * 2
    y.grad_fn.register_hook(lambda given, made: tuple(g * 2 for g in given))
    return y + 1


@case(needing_gradients, then=go_backward)
def multi_grad_hook(x):
    y, z = x * 2, x * 3
    seen = []
    torch.autograd.graph.register_multi_grad_hook((y, z), lambda grads: seen.append(len(grads)))
    return y + z, seen


@scenario(lambda made: [(t(2, 3, grad=True),), (t(4, 3, grad=True),)], then=go_backward)
def full_backward_hooks():
    torch.manual_seed(0)
    made, seen = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), []
    made[0].register_full_backward_hook(lambda m, gi, go: seen.append(len(gi)))
    made[1].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
    return made, (made, seen)


@scenario(lambda made: [(t(2, 3, grad=True),), (t(4, 3, grad=True),)], then=go_backward)
def full_backward_hook_registered_inside():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def program(x):
        handle = made[0].register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,))
        y = made(x)
        handle.remove()
        return y

    return program, made


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)], then=lambda r: r.sum().backward())
def hook_on_intermediate(x):
    seen = []
    y = x * 2
    y.register_hook(lambda grad: seen.append(grad.shape) or grad * 3)
    return y.sin()
