"""`tensor.grad`: read, assigned, deleted, and kept for what is no leaf."""

from __future__ import annotations

import torch

from conformance.declare import case, t
from conformance.gradients import go_backward, needing_gradients, some_needing_gradients


@case(needing_gradients, then=go_backward)
def retained_gradient(x):
    y = x * 2
    y.retain_grad()
    z = (y * 3).sum()
    return z, y, y.retains_grad, x.retains_grad


@case(needing_gradients)
def retained_gradient_read(x):
    y = x * 2
    y.retain_grad()
    (y * 3).sum().backward()
    return y.grad, x.grad


@case(some_needing_gradients)
def gradient_read_without(x):
    return x.grad is None, x * 2


def _with_gradients():
    for value in (1.0, 2.0, None):
        x = t(3, grad=True)
        x.grad = None if value is None else torch.full((3,), value)
        yield (x,)


@case(_with_gradients)
def gradient_of_argument(x):
    if x.grad is None:
        return x * 2
    x.grad.add_(1)
    return x * x.grad, x.grad


@case(_with_gradients)
def gradient_assigned_and_deleted(x):
    old = x.grad
    x.grad = torch.ones_like(x)
    y = x.grad * 2
    del x.grad
    return old, y, x.grad


@case(needing_gradients)
def leaf_and_version(x):
    y = x * 2
    before = y._version
    y.add_(1)
    return x.is_leaf, y.is_leaf, y._version - before, y.output_nr


def _perhaps_with_gradients():
    for held in (False, True, False):
        x = t(3, grad=True)
        if held:
            x.grad = torch.ones(3)
        yield (x,)


@case(_perhaps_with_gradients)
def gradient_attribute_read(x):
    return x * 2 if x.grad is None else x.grad + 1


@case(_perhaps_with_gradients)
def gradient_attribute_written(x):
    before = x.grad
    x.grad = torch.full((3,), 7.0)
    same = x.grad is before
    x.grad = x.grad * 2
    return same, x.grad


@case(_perhaps_with_gradients)
def gradient_attribute_cleared(x):
    x.grad = None
    y = (x**2).sum()
    y.backward()
    return x.grad, y


@case(lambda: [(t(3, grad=True), 0), (t(3, grad=True), t(2)), (t(3, grad=True), t(3))])
def gradient_attribute_odd(x, value):
    x.grad = value
    return x.grad


@case(lambda: [(t(3),), (t(2),)], then=lambda r: r[0].sum().backward())
def leaf_made_inside(x):
    leaf = x.detach().requires_grad_()
    return leaf * 2, leaf, leaf.is_leaf, leaf.grad
