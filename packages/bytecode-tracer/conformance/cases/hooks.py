"""Hooks of modules and tensors, of every kind, added and removed between calls."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t


def module():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU())


def _plain(_):
    return [(t(2, 3),), (t(4, 3),), (t(2, 3),)]


@scenario(_plain)
def forward_hook():
    made = module()
    made[0].register_forward_hook(lambda module, args, result: result * 2)
    return made, made


@scenario(_plain)
def forward_pre_hook():
    made = module()
    made[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return made, made


@scenario(_plain)
def hook_on_compiled_module():
    made = module()
    made.register_forward_hook(lambda module, args, result: (result, args[0]))
    return made, made


@scenario(_plain)
def hooks_with_kwargs():
    class Local(nn.Module):
        def forward(self, x, *, scale=1):
            return x * scale

    made = Local()

    def pre(module, args, kwargs):
        return args, {"scale": kwargs["scale"] + 1}

    made.register_forward_pre_hook(pre, with_kwargs=True)
    made.register_forward_hook(lambda m, a, k, r: (r, k["scale"]), with_kwargs=True)
    return (lambda x: made(x, scale=3)), made


@scenario(_plain)
def hook_records():
    made, seen = module(), []
    made[1].register_forward_hook(lambda module, args, result: seen.append(result.shape))
    return made, seen


@scenario(_plain)
def several_hooks_in_order():
    made = module()
    made[0].register_forward_hook(lambda m, a, r: r + 1)
    made[0].register_forward_hook(lambda m, a, r: r * 10)
    made[0].register_forward_hook(lambda m, a, r: r - 5, prepend=True)
    return made, made


def _added(made):
    yield (t(2, 3),)
    handle = made[0].register_forward_hook(lambda m, a, r: r * 100)
    yield (t(2, 3),)
    handle.remove()
    yield (t(2, 3),)
    handle = made.register_forward_pre_hook(lambda m, a: (a[0] * 0,))
    yield (t(2, 3),)
    handle.remove()
    yield (t(2, 3),)


@scenario(_added)
def hooks_added_and_removed():
    made = module()
    return made, made


def _global_hook(made):
    yield (t(2, 3),)
    handle = nn.modules.module.register_module_forward_hook(lambda m, a, r: r + 1)
    try:
        yield (t(2, 3),)
    finally:
        handle.remove()
    yield (t(2, 3),)


@scenario(_global_hook)
def global_hook():
    made = module()
    return made, made


@scenario(_plain)
def hook_raises():
    made = module()

    def fail(module, args, result):
        raise ValueError("from the hook")

    made[1].register_forward_hook(fail)
    return made, made


def _zero(made):
    for x in (t(2, 3), t(4, 3)):
        made.zero_grad()
        yield (x,)


@scenario(_zero, then=lambda y: y.sum().backward())
def full_backward_hook():
    made = module()
    made[0].register_full_backward_hook(lambda m, gi, go: tuple(g and g * 2 for g in [None]))
    return made, made


@scenario(_zero, then=lambda y: y.sum().backward())
def tensor_hook_on_parameter():
    made = module()
    made[0].weight.register_hook(lambda grad: grad * 3)
    return made, made


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)], then=lambda y: y.sum().backward())
def tensor_hook_inside(x):
    y = x * 2
    y.register_hook(lambda grad: grad * 10)
    return y + 1


@case(lambda: [(t(3, grad=True), []), (t(2, grad=True), [])], then=lambda r: r[0].sum().backward())
def tensor_hook_records(x, seen):
    y = x * 2
    y.register_hook(seen.append)
    return y + 1, seen


def _hooked():
    x = t(3, grad=True)
    x.register_hook(lambda grad: grad + 1)
    return [(x,), (t(3, grad=True),)]


@case(_hooked, then=lambda y: y.sum().backward())
def hooked_argument(x):
    return x * 2


@scenario(_plain)
def hook_registered_inside():
    made = module()

    def program(x):
        handle = made[0].register_forward_hook(lambda m, a, r: r * 2)
        y = made(x)
        handle.remove()
        return y, made(x)

    return program, made


@scenario(_plain)
def hook_changes_state_of_module():
    made = module()
    made[0].count = 0

    def count(module, args, result):
        module.count += 1
        return result * module.count

    made[0].register_forward_hook(count)
    return made, made


@scenario(_plain)
def always_called_hook():
    class Failing(nn.Module):
        def forward(self, x):
            raise RuntimeError("forward")

    seen = []
    made = Failing()
    made.register_forward_hook(lambda m, a, r: seen.append("called"), always_call=True)
    return made, seen


@scenario(_plain)
def state_dict_hook():
    made = module()
    made.register_state_dict_post_hook(lambda m, d, p, meta: d.update({p + "extra": torch.ones(1)}))

    def program(x):
        return made(x), list(made.state_dict())

    return program, made
