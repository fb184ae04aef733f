"""What needs gradients: asked, switched on and off, detached; of inputs and results."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t
from conformance.gradients import go_backward, needing_gradients, some_needing_gradients


@case(some_needing_gradients)
def requires_grad_switched_on(x):
    y = x.detach().clone().requires_grad_()
    z = (y * 2).sum()
    return y.requires_grad, y.is_leaf, z.requires_grad, torch.autograd.grad(z, y)[0]


@case(some_needing_gradients)
def requires_grad_of_argument(x):
    before = x.requires_grad
    x.requires_grad_(True)
    y = x * 2
    return before, y.requires_grad, x.requires_grad


@case(some_needing_gradients)
def requires_grad_attribute_set(x):
    y = x.detach() + 1
    y.requires_grad = True
    z = y * 2
    x.requires_grad = not x.requires_grad
    return z.requires_grad, x.requires_grad, (x * 2).requires_grad


@case(needing_gradients)
def requires_grad_of_non_leaf_raises(x):
    y = x * 2
    try:
        y.requires_grad_(False)
    except RuntimeError as error:
        return str(error)
    return y


@case(lambda: [(nn.Linear(2, 2), True), (nn.Linear(2, 2), False), (nn.Linear(2, 2), True)])
def module_requires_grad(module, flag):
    module.requires_grad_(flag)
    y = module(torch.ones(1, 2))
    return y, y.requires_grad, [p.requires_grad for p in module.parameters()]


@case(some_needing_gradients)
def detached_in_place(x):
    y = x * 2
    y.detach_()
    return y, y.requires_grad, (y * 2).requires_grad


@case(some_needing_gradients)
def argument_detached_in_place(x):
    x.detach_()
    return x.requires_grad, x * 2


@case(needing_gradients)
def detached_view_shares(x):
    y = x * 2
    z = y.detach()
    z.add_(1)
    return y, z, z.requires_grad


@case(needing_gradients, then=go_backward)
def unfrozen_in_loop(x):
    total = x.new_zeros(())
    for step in range(3):
        w = torch.full_like(x, float(step)).requires_grad_(step > 0)
        total = total + (x * w).sum()
    return total


def _fresh():
    return [(t(3),), (t(2),), (t(3, grad=True),), (t(3, start=0.5),)]


@case(_fresh, then=go_backward)
def input_needs_gradients(x):
    x.requires_grad_()
    return (x * x).sum()


@case(_fresh, then=go_backward)
def input_needs_gradients_after_its_use(x):
    y = x * 2
    x.requires_grad_()
    return (y * x).sum()


@case(_fresh, then=go_backward)
def input_needs_gradients_and_no_more(x):
    x.requires_grad_()
    y = (x * x).sum()
    x.requires_grad_(False)
    return y, x


@case(_fresh)
def input_needs_gradients_without_a_graph(x):
    x.requires_grad_()
    return x.requires_grad, x.is_leaf, x


@case(lambda: [(t(3), torch.tensor([n])) for n in (1, 9, 2)], then=go_backward)
def input_needs_gradients_where_the_graph_fails(x, places):
    before = x.requires_grad
    x.requires_grad_()
    try:
        y = x[places]
    except IndexError:
        y = x * 3
    return y, before


@case(lambda: [(torch.arange(3),), (t(3),), (t(3).bool(),)])
def integers_cannot_need_gradients(x):
    try:
        x.requires_grad_()
    except RuntimeError as error:
        return str(error)
    return x


@case(lambda: [(t(3).clone(),), (t(2).clone(),), (t(3, grad=True),)])
def input_detached_in_place(x):
    y = x.detach_()
    return y is x, y * 2


@case(lambda: [(t(2, 3)[0],), (t(2, 3),)])
def view_detached_in_place(x):
    try:
        return x.detach_() * 2
    except RuntimeError as error:
        return type(error).__name__


@scenario(lambda made: [(t(2, 3), flag) for flag in (True, False, True, True, False)])
def frozen_in_the_call():
    torch.manual_seed(0)
    made = nn.Linear(3, 2)

    def function(x, flag):
        for p in made.parameters():
            p.requires_grad_(flag)
        return made(x).sum()

    return function, made
