"""Tensors that get other data, other flags, or another history."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t


def _pairs():
    return [(t(2, 3), t(2, 3, start=3)), (t(4, 3), t(4, 3)), (t(2, 3, start=1), t(2, 3))]


def _needing():
    return [
        (t(2, 3, grad=True), t(2, 3, start=3)),
        (t(4, 3, grad=True), t(4, 3)),
        (t(2, 3, grad=True, start=1), t(2, 3)),
    ]


def _backward(result):
    first = result[0] if isinstance(result, tuple) else result
    if first.requires_grad:
        first.sum().backward()
    return first


@case(_needing, then=_backward)
def data_of_a_history(x, v):
    y = x * 2
    y.data = v
    return y * 3


@case(_needing, then=_backward)
def data_of_a_history_that_is_saved(x, v):
    y = x * 2
    z = y.sin()
    y.data = v
    return z + y


@case(_needing)
def data_of_a_history_detached(x, v):
    y = (x * 2).detach()
    y.data = v
    return y * 3


@case(_needing)
def data_of_a_history_in_place(x, v):
    y = x * 2
    y.data.mul_(2)
    return y * 3


@case(_pairs)
def data_of_a_view(x, v):
    y = x[0]
    y.data = v[1]
    y.add_(1)
    return x, y, v


@case(_needing, then=_backward)
def data_of_a_leaf_then_used(x, v):
    x.data = x.data + v
    return x * 2


@case(_needing)
def data_clamped(x, v):
    x.data.clamp_(0, 1)
    return x.detach() * 2


class Tagged(torch.Tensor):
    pass


@case(lambda: [(t(2, 3).as_subclass(Tagged), t(2, 3, start=3)) for _ in range(3)])
def data_of_a_subclass(x, v):
    x.data = v
    return x + 1


@case(lambda: [(t(n, 3), t(n, 3, start=1)) for n in (2, 4, 5)], dynamic=True)
def data_of_any_size(x, v):
    x.data = v * 2
    return x + 1


@case(lambda: [(t(n, 3), t(n, 3, start=1)) for n in (2, 4, 5)])
def data_of_sizes_that_change(x, v):
    x.data = v * 2
    return x + 1


@case(_pairs, then=_backward)
def requires_grad_of_an_argument(x, v):
    x.requires_grad_()
    return (x * v).sin()


@case(_needing)
def requires_grad_taken_away(x, v):
    x.requires_grad_(False)
    return (x * v).sin().requires_grad, x


@case(_pairs)
def requires_grad_and_backward(x, v):
    x.requires_grad_()
    (x * v).sin().sum().backward()
    return x.grad, x.requires_grad


@case(_pairs)
def requires_grad_after_use(x, v):
    y = x * 2
    x.requires_grad_()
    z = (x * v).sum()
    z.backward()
    return y.requires_grad, x.grad


@case(_pairs)
def requires_grad_set(x, v):
    x.requires_grad = True
    (x * v).sum().backward()
    x.requires_grad = False
    return x.grad


@case(_pairs)
def requires_grad_of_what_is_made(x, v):
    y = (x * 2).requires_grad_()
    (y * v).sum().backward()
    return y.grad


@case(_needing)
def detached_argument(x, v):
    x.detach_()
    return x * v


@case(_needing, then=_backward)
def detached_result(x, v):
    y = x * v
    z = y.sin()
    y.detach_()
    return z, y


@case(_pairs)
def set_to_another(x, v):
    x.set_(v)
    x.add_(1)
    return x * 2, v


@case(_pairs)
def set_to_what_is_made(x, v):
    y = v * 2
    x.set_(y)
    return x + 1


@case(_pairs)
def made_and_set(x, v):
    y = torch.empty(0)
    y.set_(v)
    y.mul_(2)
    return y, v


@case(_pairs)
def set_to_a_storage(x, v):
    y = torch.empty(0).set_(v.untyped_storage().untyped() if False else v.untyped_storage())
    return y


@case(_pairs)
def swapped(x, v):
    torch.utils.swap_tensors(x, v)
    return x * 2, v


@scenario(lambda *_: [(t(2, 3),)] * 3)
def parameters_swapped():
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(t(3, 3))

    def program(x):
        before = layer.weight
        torch.utils.swap_tensors(layer.weight, nn.Parameter(layer.weight.detach() * 2))
        return layer(x), before is layer.weight

    return program, layer


@scenario(lambda *_: [(t(2, 3),)] * 3)
def parameter_replaced():
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(t(3, 3))

    def program(x):
        layer.weight = nn.Parameter(layer.weight.detach() * 2)
        return layer(x)

    return program, layer


@scenario(lambda *_: [(t(2, 3),)] * 3)
def frozen_inside():
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(t(3, 3))

    def program(x):
        layer.requires_grad_(False)
        y = layer(x)
        layer.requires_grad_(True)
        return y.requires_grad, layer(x).requires_grad

    return program, layer
