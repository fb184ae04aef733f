"""Hooks of gradients: traced into the graph, left to Python, and what they must not see stale."""

from __future__ import annotations

import functools

import torch
from torch import nn

from conformance.declare import case, scenario, t
from conformance.gradients import go_backward as _backward
from conformance.gradients import go_backward_twice as _twice
from conformance.gradients import needing_gradients as _grads


def _matrices():
    return [(t(2, 3, grad=True),), (t(4, 2, grad=True),), (t(2, 3, grad=True, start=0.5),)]


def _clip(grad):
    return grad.clamp(-1, 1)


def _scaled(factor, grad):
    return grad * factor


@case(_grads, then=_backward)
def by_name(x):
    y = x * 5
    y.register_hook(_clip)
    return y * y


@case(_grads, then=_backward)
def by_partial(x):
    y = x * 5
    y.register_hook(functools.partial(_scaled, 3.0))
    return y * y


@case(_grads, then=_backward)
def by_builtin(x):
    y = x * 5
    y.register_hook(torch.neg)
    return y * y


@case(_grads, then=_twice)
def differentiated_twice(x):
    y = x * x
    y.register_hook(lambda grad: grad * x.detach() + grad * grad)
    return (y * y * y, x)


@case(_grads, then=_backward)
def uses_its_own_tensor(x):
    y = x.sin()
    y.register_hook(lambda grad: grad * y)
    return y * 2


@case(_grads, then=_backward)
def changed_in_place_after(x):
    y = x * 2
    y.register_hook(lambda grad: grad + 1)
    y.mul_(3)
    y.register_hook(lambda grad: grad * 7)
    y.add_(1)
    return y * y


@case(_grads, then=_backward)
def captured_tensor_changes_later(x):
    y, scale = x * 2, torch.ones(())
    y.register_hook(lambda grad: grad * scale)
    scale.add_(4)
    return y * y


@case(_grads, then=_backward)
def variable_changes_later(x):
    y, factor = x * 2, 2.0
    y.register_hook(lambda grad: grad * factor)
    factor = 5.0
    return y * y


@case(_grads, then=_backward)
def variable_of_loop(x):
    made = []
    for factor in (2.0, 3.0):
        y = x * factor
        y.register_hook(lambda grad: grad * factor)  # noqa: B023  # they all see the last
        made.append(y)
    return made[0] + made[1]


@case(_grads, then=_backward)
def variable_changes_after_a_break(x):
    y, factor = x * 2, 2.0
    y.register_hook(lambda grad: grad * factor)
    print(y.sum() > 1e6)
    factor = 5.0
    return y * y


@case(_grads, then=lambda made: made[1](made[0]))
def variable_changes_after_the_call(x):
    y, factor = x * 2, 2.0
    y.register_hook(lambda grad: grad * factor)

    def change(result):
        nonlocal factor
        factor = 11.0
        result.sum().backward()

    return y * y, change


FACTOR = 2.0


def _global_changed(result):
    global FACTOR
    FACTOR = 7.0
    _backward(result)
    FACTOR = 2.0


@case(_grads, then=_global_changed)
def global_changes_after_the_call(x):
    y = x * 2
    y.register_hook(lambda grad: grad * FACTOR)
    return y * y


class _Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 2.0

    def forward(self, x):
        y = x * 2
        y.register_hook(lambda grad: grad * self.factor)
        return y * y, self


def _attribute_changed(result):
    result[1].factor += 1
    _backward(result[0])


@scenario(lambda made: _grads(), then=_attribute_changed)
def attribute_changes_after_the_call():
    model = _Scaled()
    return model, model


@scenario(lambda made: _grads(), then=_backward)
def local_copy_of_an_attribute():
    class Model(_Scaled):
        def forward(self, x):
            y, factor = x * 2, self.factor
            y.register_hook(lambda grad: grad * factor)
            return y * y

    model = Model()
    return model, model


@case(_matrices, then=_backward)
def asks_for_the_layout(x):
    y = x.t() * 2
    y.register_hook(lambda grad: grad * 2 if grad.is_contiguous() else grad * 3)
    return (y.t() * 2).contiguous()


@case(_matrices, then=_backward)
def flattens(x):
    y = x * 2
    y.register_hook(lambda grad: grad.reshape(-1).flip(0).reshape(grad.shape))
    return y


@case(_grads, then=_backward)
def asks_whether_gradients_are_on(x):
    y = x * 2
    y.register_hook(lambda grad: grad * (2 if torch.is_grad_enabled() else 3))
    return y * y


@case(_grads, then=_backward)
def changes_a_captured_tensor(x):
    y, count = x * 2, torch.zeros(())
    y.register_hook(lambda grad: count.add_(1) * 0 + grad)
    return y * y, count


@case(_grads, then=_backward)
def changes_its_own_copy(x):
    def without_first(grad):
        made = grad.clone()
        made[0] = 0
        return made.mul_(2)

    y = x * 2
    y.register_hook(without_first)
    return y * y


@case(_grads, then=_backward)
def branches_on_the_gradient(x):
    y = x * 2
    y.register_hook(lambda grad: grad / grad.norm() if grad.norm() > 1 else grad)
    return y * y


@case(_grads, then=_backward)
def draws(x):
    y = x * 2
    torch.manual_seed(3)
    y.register_hook(lambda grad: grad * torch.rand_like(grad))
    return y * torch.rand(())


@case(_grads, then=_backward)
def returns_nothing(x):
    y = x * 2
    y.register_hook(lambda grad: None)
    return y * y


@case(_grads)
def returns_no_gradient(x):
    y = x * 2
    y.register_hook(lambda grad: 3)
    try:
        (y * y).sum().backward()
    except (TypeError, RuntimeError) as error:
        return type(error).__name__
    return y


@case(_grads)
def returns_another_shape(x):
    y = x * 2
    y.register_hook(lambda grad: grad.sum())
    try:
        (y * y).sum().backward()
    except RuntimeError as error:
        return type(error).__name__
    return y


@case(_grads)
def gradients_computed_inside(x):
    y = x * 2
    y.register_hook(lambda grad: grad * 10)
    (grad,) = torch.autograd.grad((y * y).sum(), x)
    return grad


@case(_grads)
def removed_after_gradients_were_computed(x):
    y = x * 2
    handle = y.register_hook(lambda grad: grad * 10)
    (one,) = torch.autograd.grad((y * y).sum(), x, retain_graph=True)
    handle.remove()
    (other,) = torch.autograd.grad((y * y).sum(), x)
    return one, other


@case(_grads, then=lambda made: (made[1].remove(), made[0].sum().backward()))
def handle_leaves(x):
    y = x * 2
    handle = y.register_hook(lambda grad: grad * 10)
    return y * y, handle


@case(_grads, then=lambda made: (made[1].remove(), made[0].sum().backward()))
def handle_of_an_argument_leaves(x):
    first = x.register_hook(lambda grad: grad + 1)
    second = x.register_hook(lambda grad: grad * 10)
    third = x.register_hook(lambda grad: grad + 2)
    first.remove()
    return x * x, second, third


@case(_grads, then=_backward)
def removes_itself(x):
    def once(grad):
        handle.remove()
        return grad * 10

    handle = x.register_hook(once)
    return x * x


@case(lambda: [(t(3, grad=True), []), (t(2, grad=True), [])], then=_backward)
def on_an_argument_with_effects(x, seen):
    x.register_hook(seen.append)
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    return x * x


@case(_grads, then=_backward)
def retained_on_a_leaf(x):
    x.retain_grad()
    return x * x


@case(_grads, then=_backward)
def used_over_a_break(x):
    y = x * 2
    y.register_hook(lambda grad: grad * 10)
    print(y.sum() > 1e6)
    z = y * y
    z.register_hook(lambda grad: grad + 1)
    return z * y


@case(_grads, then=_backward)
def nested_functions(x):
    def hooked(value, *factors):
        for factor in factors:
            value = value * 2
            value.register_hook(functools.partial(lambda f, grad: helper(grad, f), factor))
        return value

    def helper(grad, factor):
        return grad * factor + offset

    offset = x.detach().sum()
    return hooked(x, 2.0, 3.0)


@case(lambda: [(t(3, grad=True),), (t(3),), (t(2, grad=True),)], then=_backward)
def where_gradients_are_off(x):
    with torch.no_grad():
        y = x * 2
        try:
            y.register_hook(lambda grad: grad)
        except RuntimeError as error:
            return x * 2, str(error)
    return y


@case(_grads, then=_backward)
def under_a_checkpoint(x):
    def inner(value):
        y = value * 2
        y.register_hook(lambda grad: grad * 10)
        return y * y

    return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)
