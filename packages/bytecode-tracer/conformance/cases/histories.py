"""Tensors that gradients have come to before the call, changed in place inside traced code."""

from __future__ import annotations

import torch

from conformance.declare import case, t


def _with_history(size=3, start=0.0):
    leaf = t(size, grad=True, start=start)
    return leaf, leaf * 1.5


def _pairs():
    return [_with_history(), _with_history(2), _with_history(start=0.5)]


def _some_leaves():
    leaf = t(3, grad=True)
    return [_with_history(), (leaf, t(3)), (t(3, grad=True), leaf), (t(3), t(3))]


def _views():
    leaf = t(4, grad=True)
    return [_with_history(4), (leaf, (leaf * 2)[:3]), (leaf, leaf[1:]), (leaf, leaf.detach())]


def _backward(result):
    found = [each for each in result if isinstance(each, torch.Tensor) and each.requires_grad]
    if found:
        sum(each.sin().sum() for each in found).backward()


@case(_pairs, then=_backward)
def scaled(leaf, x):
    x.mul_(2)
    return x, x * leaf


@case(_some_leaves, then=_backward)
def changed_where_it_may_be_a_leaf(leaf, x):
    y = x + 1
    x += 1
    return x.sin() * y, leaf


@case(_views, then=_backward)
def changed_where_it_may_be_a_view(leaf, x):
    x[0] = 0.5
    return x.exp(), leaf


@case(_some_leaves, then=_backward)
def leaf_error_handled(leaf, x):
    try:
        x.add_(1)
    except RuntimeError as error:
        return leaf, str(error)
    return leaf, x


@case(_pairs, then=_backward)
def a_view_is_changed(leaf, x):
    first = x[:1]
    first.zero_()
    return x * 2, first, x.is_leaf, x.requires_grad


@case(_pairs, then=_backward)
def changed_without_gradients(leaf, x):
    with torch.no_grad():
        x.mul_(3)
    return x * leaf, x


@case(_pairs, then=_backward)
def changed_before_a_break(leaf, x):
    x.mul_(2)
    print("changed", len(x))
    x.add_(leaf)
    return x, leaf


@case(_pairs)
def gradients_by_what_is_changed(leaf, x):
    before = x * 1
    x.mul_(2)
    (found,) = torch.autograd.grad((x * before).sum(), before)
    return found


@case(_pairs)
def hooked_and_changed(leaf, x):
    seen = []
    x.register_hook(seen.append)
    x.mul_(2)
    x.sum().backward()
    return seen, leaf.grad


@case(_pairs, then=_backward)
def given_what_has_gradients(leaf, x):
    made = torch.zeros_like(x)
    made.copy_(x)
    x.copy_(leaf)
    return made, x


# What gets another geometry in place.


def _grads():
    return [(t(2, 3, grad=True),), (t(3, grad=True),), (t(2, 3),)]


@case(_grads, then=_backward)
def saved_and_transposed(x):
    y = x.exp()
    y.t_()
    return (y * 2,)


@case(_grads, then=_backward)
def not_saved_and_transposed(x):
    y = x + 1
    y.t_()
    y.unsqueeze_(0)
    return y.sin(), y._is_view()


@case(_grads, then=_backward)
def transposed_without_gradients(x):
    y = x + 1
    with torch.no_grad():
        y.t_()
    return (y.sin(),)


@case(_grads, then=_backward)
def a_view_is_transposed(x):
    y = x * 2
    first = y[:1]
    first.squeeze_()
    first.mul_(3)
    return y, first


@case(_grads, then=_backward)
def an_argument_is_unsqueezed(x):
    y = x.sigmoid()
    z = x * 1
    z.unsqueeze_(0)
    x.detach().unsqueeze_(0)
    return y, z, x.shape


@case(lambda: [(t(2, 3), t(2, 3, grad=True)), (t(2, 3, grad=True), t(2, 3))], then=_backward)
def only_comes_to_need_gradients(x, y):
    before = x.sum(-1, keepdim=True)
    if not x.requires_grad:
        x.copy_(y)
    return before.requires_grad, before, x
