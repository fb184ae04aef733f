"""Hooks of gradients and of autograd's nodes that do more than compute, and kept gradients."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t


def _grads():
    return [(t(2, 3, grad=True),), (t(4, 3, grad=True),), (t(2, 3, grad=True, start=0.5),)]


def _recorded():
    return [(*args, []) for args in _grads()]


def _backward(result):
    last = result[-1] if isinstance(result, tuple | list) else result
    if isinstance(last, torch.Tensor) and last.requires_grad:
        last.sum().backward(retain_graph=True)


def _with_grad(result):
    _backward(result)
    return [getattr(r, "grad", None) for r in result]


@case(_recorded, then=_backward)
def records(x, seen):
    y = x * 2
    y.register_hook(lambda grad: seen.append(grad.sum()))
    return y.sin()


@case(_recorded, then=_backward)
def records_in_order(x, seen):
    y = x * 2
    y.register_hook(lambda grad: seen.append(("y", grad.sum())))
    z = y.sin()
    z.register_hook(lambda grad: seen.append(("z", grad.sum())))
    return z.cos()


@case(_recorded, then=_backward)
def records_and_scales(x, seen):
    y = x * 2

    def hook(grad):
        seen.append(grad.norm())
        return grad / 2

    y.register_hook(hook)
    return y.sin()


@case(_grads, then=_backward)
def prints(x):
    y = x * 2
    y.register_hook(lambda grad: print("gradient", grad.shape))
    return y.sin()


@case(_grads, then=_backward)
def prints_the_gradient(x):
    y = x * 2
    y.register_hook(print)
    return y.sin()


@case(_grads, then=_backward)
def appends_to_what_it_returns(x):
    y, seen = x * 2, []
    y.register_hook(seen.append)
    return seen, y.sin()


@case(_recorded)
def records_inside(x, seen):
    y = x * 2
    y.register_hook(lambda grad: seen.append(grad.sum()))
    y.sin().sum().backward()
    return x.grad, len(seen)


@scenario(lambda *_: _grads(), then=_backward)
def counts_on_an_object():
    class Counter:
        count = 0

    counter = Counter()

    def program(x):
        y = x * 2

        def hook(grad):
            counter.count += 1
            return grad * counter.count

        y.register_hook(hook)
        return y.sin()

    return program, counter


@case(_recorded, then=_backward)
def on_a_leaf_that_records(x, seen):
    x.register_hook(lambda grad: seen.append(grad.sum()))
    return x.sin()


@case(_recorded)
def on_a_leaf_and_backward_inside(x, seen):
    x.register_hook(lambda grad: seen.append(grad.sum()))
    x.sin().sum().backward()
    return x.grad, seen


@case(_recorded)
def after_accumulation_inside(x, seen):
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
    x.sin().sum().backward()
    return x.grad


@case(_recorded, then=_backward)
def after_accumulation(x, seen):
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
    return x.sin()


@scenario(lambda *_: [(t(2, 3),), (t(4, 3),), (t(2, 3, start=1),)])
def optimizer_in_hooks():
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(t(2, 3))
        layer.bias.zero_()
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in layer.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in layer.parameters():
        parameter.register_post_accumulate_grad_hook(step)

    def program(x):
        loss = layer(x).square().mean()
        loss.backward()
        return loss.detach()

    return program, layer


@case(_grads, then=_backward)
def handle_removed(x):
    y = x * 2
    handle = y.register_hook(lambda grad: grad * 3)
    z = y.sin()
    handle.remove()
    return z


@case(_grads, then=_backward)
def handle_as_a_context(x):
    y = x * 2
    with y.register_hook(lambda grad: grad * 3):
        z = y.sin()
    return z


@case(_grads, then=lambda r: (r[0].remove(), _backward(r[1])))
def handle_leaves(x):
    y = x * 2
    return y.register_hook(lambda grad: grad * 3), y.sin()


@case(_grads, then=_with_grad)
def kept_with_a_hook(x):
    y = x * 2
    y.register_hook(lambda grad: grad * 3)
    y.retain_grad()
    return y, y.sin()


@case(_grads)
def kept_with_a_hook_inside(x):
    y = x * 2
    y.register_hook(lambda grad: grad * 3)
    y.retain_grad()
    y.sin().sum().backward()
    return y.grad, x.grad


@case(_grads)
def kept_with_inputs(x):
    y = x * 2
    y.retain_grad()
    z = y.sin()
    z.sum().backward(inputs=[x])
    return y.grad, x.grad


@case(_grads)
def kept_with_inputs_of_itself(x):
    y = x * 2
    y.retain_grad()
    y.sin().sum().backward(inputs=[y])
    return y.grad, x.grad


@case(_grads)
def kept_with_create_graph(x):
    y = x * 2
    y.retain_grad()
    y.sin().sum().backward(create_graph=True)
    return y.grad * 2, x.grad.detach()


@case(_grads)
def kept_with_inputs_elsewhere(x):
    w = torch.ones(3, requires_grad=True)
    y, z = x * 2, w * 3
    y.retain_grad()
    z.retain_grad()
    (y * z).sum().backward(inputs=[w])
    first = y.grad, z.grad, x.grad
    (y.sin() + z.cos()).sum().backward(inputs=[x])
    return first, y.grad, z.grad, x.grad, w.grad


@case(_grads)
def kept_of_a_graph_differentiated_again(x):
    y = x * 2
    y.retain_grad()
    y.sin().sum().backward(create_graph=True)
    first = y.grad
    first.square().sum().backward()
    return first.detach(), y.grad.detach(), x.grad.detach()


@case(_grads)
def kept_by_parts(x):
    y = (x * 2).split(1)
    y[0].retain_grad()
    y[1].retain_grad()
    y[1].sin().sum().backward(inputs=[x])
    return y[0].grad, y[1].grad, x.grad


@case(_grads, then=_with_grad)
def kept_outside(x):
    y = x * 2
    y.retain_grad()
    return y, y.sin()


@case(_recorded, then=_backward)
def on_a_node(x, seen):
    y = x.sin()
    y.grad_fn.register_hook(lambda gi, go: seen.append(go[0].sum()))
    return y * 2


@case(_grads, then=_backward)
def on_a_node_before(x):
    y = x.sin()
    y.grad_fn.register_prehook(lambda go: (go[0] * 2,))
    return y * 2


@case(_grads)
def on_a_node_inside(x):
    y = x.sin()
    y.grad_fn.register_hook(lambda gi, go: (gi[0] * 2,))
    (y * 2).sum().backward()
    return x.grad


@case(_recorded, then=_backward)
def on_several_gradients(x, seen):
    y, z = x * 2, x + 1
    torch.autograd.graph.register_multi_grad_hook((y, z), lambda grads: seen.append(len(grads)))
    return y * z


@case(_grads, then=_backward)
def metadata_of_a_node(x):
    y = x.sin()
    return y.grad_fn.name(), y * 2
