"""Gradients of what is no leaf, tensors that lose their history, and data that is replaced."""

from __future__ import annotations

import warnings

import torch

from conformance.declare import case, t


def _grads():
    return [(t(2, 3, grad=True),), (t(4, 3, grad=True),), (t(2, 3, grad=True, start=0.5),)]


def _backward(result):
    last = result[-1] if isinstance(result, tuple | list) else result
    if isinstance(last, torch.Tensor) and last.requires_grad:
        last.sum().backward(retain_graph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        items = result if isinstance(result, tuple | list) else [result]
        return [getattr(item, "grad", None) for item in items]


# Tensors that keep their gradients.


@case(_grads)
def read_in_the_call(x):
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    return y.grad, x.grad


@case(_grads)
def summed_over_passes(x):
    y = x * 2
    y.retain_grad()
    before = y.grad
    (y * y).sum().backward(retain_graph=True)
    first = y.grad
    (y * 3).sum().backward()
    return before, first, y.grad, y.grad is first


@case(_grads)
def set_to_none_between(x):
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward(retain_graph=True)
    y.grad = None
    (y.sin()).sum().backward()
    return y.grad


@case(_grads)
def not_reached(x):
    y = x * 2
    y.retain_grad()
    x.sum().backward()
    return y.grad, x.grad


@case(_grads, then=_backward)
def never_read(x):
    y = x * 2
    y.retain_grad()
    return (y * y).sum()


@case(_grads, then=_backward)
def outlives_the_call(x):
    y = x * 2
    y.retain_grad()
    return y, (y * y).sum()


@case(_grads, then=_backward)
def kept_over_a_break(x):
    y = x * 2
    y.retain_grad()
    if float(y.sum()) > 1000:
        return y
    (y * y).sum().backward()
    return y.grad


@case(_grads)
def changed_in_place_after(x):
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    (y * y).sum().backward()
    return y.grad, x.grad


@case(_grads)
def of_a_transposed_gradient(x):
    y = x * 2
    y.retain_grad()
    (y.t() @ torch.ones(x.shape[0], 2)).sum().backward()
    return y.grad, y.grad.stride()


@case(_grads)
def of_a_leaf_that_the_code_makes(x):
    y = x.detach().requires_grad_()
    y.retain_grad()
    (y * y).sum().backward()
    return y.grad


@case(_grads)
def with_a_hook(x):
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda grad: grad * 3)
    (y * y).sum().backward()
    return y.grad, x.grad


@case(_grads)
def by_autograd_grad(x):
    y = x * 2
    y.retain_grad()
    (found,) = torch.autograd.grad((y * y).sum(), x)
    return found, y.grad


@case(_grads)
def to_some_inputs(x):
    w = torch.ones(3, requires_grad=True)
    y = x * 2
    y.retain_grad()
    (y * w).sum().backward(inputs=[w])
    return y.grad, w.grad


# Tensors that lose their history.


@case(_grads, then=_backward)
def detached(x):
    y = x * 2
    same = y.detach_()
    return y, same is y, y.requires_grad, y.is_leaf, y * x


@case(_grads, then=_backward)
def detached_unused(x):
    y = x * 2
    z = y + 1
    y.detach_()
    return y, y.requires_grad, z


@case(_grads)
def detached_after_it_was_saved(x):
    y = x * 2
    z = y.sin()
    y.detach_()
    try:
        z.sum().backward()
    except RuntimeError as error:
        return str(error)
    return x.grad


@case(_grads)
def detached_view(x):
    y = (x * 2)[0]
    try:
        y.detach_()
    except RuntimeError as error:
        return str(error)
    return y


@case(lambda: [(torch.ones(3, requires_grad=on),) for on in (True, False, True)])
def detached_argument(x):
    x.detach_()
    return x * 2, x.requires_grad
