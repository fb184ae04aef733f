"""Gradients through views, and of inputs that share memory with what is changed."""

from __future__ import annotations

import torch

from conformance.declare import case, t
from conformance.gradients import go_backward


def _leaf_and_history():
    return [(t(2, 3, grad=True),), (t(2, 3, grad=True) * 2,), (t(2, 3),)]


@case(_leaf_and_history, then=go_backward)
def geometry_of_a_view_changed_in_place(x):
    try:
        x[0].unsqueeze_(0)
    except RuntimeError as error:
        return x * 2, str(error)
    y = x * 2
    z = y[0].unsqueeze_(0)
    return y * 3, z.shape


@case(lambda: [(t(2, 3, grad=True),), (t(2, 3, grad=True)[:1],)])
def geometry_of_a_view_of_a_view_of_a_leaf(x):
    try:
        x[:1].t_()
    except RuntimeError as error:
        return x * 2, str(error)
    return x


def _sharing():
    for size in (6, 7, 6):
        base = t(size)
        yield t(3, grad=True), base[:4], base[2:]
    base = t(6)
    yield t(3, grad=True), base[:4], t(4)
    leaf = t(6, grad=True)
    yield t(3, grad=True), (leaf * 2)[:4], t(4)


@case(_sharing, then=go_backward)
def shared_memory_is_changed(w, x, y):
    x.add_(1)
    y.mul_(2)
    return (w * w).sin(), x + y.sum(), x.view(-1)


@case(_sharing, then=go_backward)
def shared_memory_is_changed_without_gradients(w, x, y):
    with torch.no_grad():
        x.copy_(w.sum())
    return w * y.detach().sum(), x


def _backward_or_error(result):
    try:
        go_backward(result)
    except RuntimeError as error:
        return str(error).partition(":")[0]
    return result


@case(_sharing, then=_backward_or_error)
def shared_memory_that_gradients_need(w, x, y):
    product = w * y[:3]
    x.add_(1)
    return product


@case(_sharing, then=_backward_or_error)
def gradients_come_to_shared_memory(w, x, y):
    x[:3].add_(w)
    return y * 2, x


def _shared_with_history():
    for grad in (True, False, True):
        x = t(3, 4, grad=grad) * 2
        yield x, x.view(4, 3)


@case(_shared_with_history, then=_backward_or_error)
def geometry_of_a_view_without_gradients_counts_as_a_change(x, y):
    x.detach_()
    with torch.no_grad():
        x.squeeze().unsqueeze_(0)
    return y.relu()


@case(lambda: [(t(3, 4),), (t(3, 4, grad=True) * 2,), (t(3, 4),)])
def versions_after_another_geometry_of_views(x):
    with torch.no_grad():
        made = [x[0].unsqueeze_(0), x.detach().t_(), x.data.t_()]
    return x._version, [tuple(each.shape) for each in made]


@case(lambda: [(t(3, 4),), (t(3, 4, grad=True),), (t(3, 4),)], then=_backward_or_error)
def a_view_comes_to_need_gradients(x):
    if x.requires_grad:
        return x * 2
    view = x[0]
    view.requires_grad_()
    return view.requires_grad, view.is_leaf, view


@case(lambda: [(t(3, 4),), (t(3, 4, grad=True) * 2,), (t(4, 3),)], then=_backward_or_error)
def the_real_part_of_real_numbers_is_the_tensor_itself(x):
    part = x.real
    part.t_()
    return part is x, x.shape, x * 2


@case(lambda: [(t(3, 4),), (t(3, 4, grad=True) * 2,), (t(3, 4),)], then=_backward_or_error)
def columns_are_copied_to_their_neighbours(x):
    x[:, :2].copy_(x[:, 2:])
    x[:, 1:3] = x[:, 1:3].clone()
    return x * 2


def _nothing_but_a_write():
    for _ in range(2):
        yield t(6, grad=True) * 2, t(6) > 0
    yield t(6), t(6) > 0


@case(_nothing_but_a_write, then=_backward_or_error)
def an_assignment_is_all_that_needs_gradients(x, mask):
    x[mask] = 0.5
    return (x,)


@case(_nothing_but_a_write, then=_backward_or_error)
def an_assignment_to_a_slice_is_all_that_needs_gradients(x, mask):
    x[:2] = 0.5
    return (x,)
