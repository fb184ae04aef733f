"""Gradients computed, hooked and written inside traced code: autograd as eager has it."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t


def _grads():
    return [(t(3, grad=True),), (t(2, grad=True),), (t(3, grad=True, start=0.5),)]


def _mixed():
    return [(t(3, grad=True),), (t(3),), (t(2, grad=True),)]


def _backward(result):
    first = result[0] if isinstance(result, tuple | list) else result
    if isinstance(first, torch.Tensor) and first.requires_grad:
        first.sum().backward()


# Hooks of tensors.


@case(_grads, then=_backward)
def hook_on_argument(x):
    x.register_hook(lambda grad: grad * 2)
    return (x * 3).sum()


@case(lambda: [(t(3, grad=True), []), (t(2, grad=True), [])], then=_backward)
def hook_on_argument_records(x, seen):
    handle = x.register_hook(lambda grad: seen.append(grad.shape))
    return (x * 3).sum(), handle.id is not None


@case(_grads, then=_backward)
def hook_removed_inside(x):
    y = x * 2
    handle = y.register_hook(lambda grad: grad * 100)
    z = y + 1
    handle.remove()
    return z


@case(_grads, then=_backward)
def hook_in_with_block(x):
    y = x * 2
    with y.register_hook(lambda grad: grad * 100):
        z = y * 2
    return z


@case(_grads, then=_backward)
def hooks_on_one_tensor(x):
    y = x * 2
    y.register_hook(lambda grad: grad + 1)
    y.register_hook(lambda grad: grad * 3)
    y.register_hook(lambda grad: None)
    return y * 5


@case(_mixed)
def hook_on_tensor_without_grad(x):
    try:
        x.register_hook(lambda grad: grad)
    except RuntimeError as error:
        return str(error)
    return x


@case(_grads, then=_backward)
def post_accumulate_hook(x):
    def double(leaf):
        leaf.grad *= 2

    x.register_post_accumulate_grad_hook(double)
    return (x * 3).sum()


@case(_grads)
def post_accumulate_hook_on_intermediate(x):
    y = x * 2
    try:
        y.register_post_accumulate_grad_hook(lambda leaf: None)
    except RuntimeError as error:
        return type(error).__name__
    return y


@scenario(lambda made: [(t(2, 3),), (t(4, 3),), (t(2, 3),)], then=_backward)
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


@case(_grads, then=_backward)
def hook_with_closure_over_result(x):
    scale = x.detach().abs() + 1
    y = x * 2
    y.register_hook(lambda grad: grad * scale)
    return y.sin()


@case(_grads, then=_backward)
def hook_in_called_function(x):
    def scaled(value, factor):
        value.register_hook(lambda grad: grad * factor)
        return value

    return scaled(x * 2, 3) + scaled(x * 4, 5)


@case(lambda: [(t(3, grad=True), 2), (t(3, grad=True), 3), (t(2, grad=True), 2)], then=_backward)
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


@case(lambda: [(t(3, grad=True), Clip(1)), (t(3, grad=True), Clip(2))], then=_backward)
def hook_that_is_an_object(x, clip):
    y = x * 3
    y.register_hook(clip)
    return y * 2, clip


@case(_grads, then=_backward)
def hook_on_node(x):
    y = x * 2
    y.grad_fn.register_hook(lambda given, made: tuple(g * 2 for g in given))
    return y + 1


@case(_grads, then=_backward)
def multi_grad_hook(x):
    y, z = x * 2, x * 3
    seen = []
    torch.autograd.graph.register_multi_grad_hook((y, z), lambda grads: seen.append(len(grads)))
    return y + z, seen


# backward and grad.


@case(_grads)
def backward_inside(x):
    y = (x * 2).sum()
    y.backward()
    return y, x.grad


@case(_grads)
def backward_between_operations(x):
    y = x.sin()
    y.sum().backward()
    return y * 2 + x.grad, x.grad.clone()


@case(_grads)
def backward_twice_accumulates(x):
    (x * 2).sum().backward()
    (x * x).sum().backward()
    return x.grad


@case(_grads)
def backward_with_gradient(x):
    y = x * x
    y.backward(torch.ones_like(y) * 2, retain_graph=True)
    y.backward(gradient=torch.ones_like(y))
    return x.grad


@case(_grads)
def backward_without_graph_raises(x):
    y = (x * x).sum()
    y.backward()
    try:
        y.backward()
    except RuntimeError as error:
        return "a second time" in str(error), x.grad
    return x.grad


@case(lambda: [(t(3, grad=True), t(3, grad=True)), (t(3, grad=True), t(3))])
def backward_to_inputs(x, y):
    z = (x * y).sum()
    z.backward(inputs=[x])
    return x.grad, y.grad


@case(_mixed)
def backward_where_nothing_requires(x):
    y = (x * 2).sum()
    if not y.requires_grad:
        return y
    torch.autograd.backward([y], [torch.tensor(2.0)])
    return x.grad


@case(_grads)
def grad_of_local_leaf(x):
    w = torch.ones(x.shape, requires_grad=True)
    loss = (x.detach() * w * w).sum()
    loss.backward()
    return w.grad, w


@case(_grads)
def gradient_cleared_and_taken_again(x):
    (x * 2).sum().backward()
    first = x.grad
    x.grad = None
    (x * 3).sum().backward()
    return first, x.grad


@case(_grads)
def gradient_changed_in_place(x):
    (x * 2).sum().backward()
    x.grad.mul_(3).add_(1)
    x.grad.zero_()
    x.grad += 4
    return x.grad


@case(_grads)
def gradient_penalty(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    penalty = (g.norm() - 1) ** 2
    return penalty, torch.autograd.grad(penalty, x)[0]


@case(_grads)
def grad_of_several(x):
    a, b = x * 2, x.sin()
    one, two = torch.autograd.grad([a.sum(), b.sum()], [a, b])
    none = torch.autograd.grad(a.sum(), [x, torch.ones(1, requires_grad=True)], allow_unused=True)
    return one, two, none


@case(_grads)
def grad_with_missing_input_raises(x):
    try:
        return torch.autograd.grad(x.sum(), torch.ones(2, requires_grad=True))
    except RuntimeError as error:
        return "unused" in str(error) or "used in the graph" in str(error)


@case(_grads)
def batched_gradients(x):
    y = x * x
    eye = torch.eye(x.shape[0])
    return torch.autograd.grad(y, x, eye, is_grads_batched=True)[0]


@case(_grads)
def functional_jacobian(x):
    inner = x.detach()
    jacobian = torch.autograd.functional.jacobian(lambda v: v * v, inner)
    return jacobian, torch.autograd.functional.hvp(lambda v: (v**3).sum(), inner, inner)[1]


@scenario(lambda made: [(t(2, 3),), (t(4, 3),), (t(2, 3),)])
def training_step_with_method_backward():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model


@scenario(lambda made: [(t(2, 3),), (t(4, 3),), (t(2, 3),)])
def accumulated_and_clipped():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)

    def step(x):
        for part in x.split(1):
            model(part).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        return norm

    return step, model


# What tensors say of gradients.


@case(_mixed)
def data_read(x):
    d = x.data
    d2 = d * 2
    return d2, d.requires_grad, d is x, x.data.shape


@case(_mixed)
def data_read_and_changed(x):
    d = x.data
    d.add_(1)
    x.data.mul_(2)
    return x * 2, d


@case(_mixed)
def data_assigned(x):
    x.data = torch.zeros(x.shape)
    return x + 1


@case(_grads)
def data_assigned_to_other_shape(x):
    x.data = torch.ones(5)
    return x.shape, x * 2


@case(lambda: [(nn.Linear(3, 2), t(2, 3)), (nn.Linear(3, 1), t(2, 3))])
def data_of_parameters(module, x):
    module.weight.data.fill_(0.5)
    module.bias.data = torch.zeros_like(module.bias.data)
    module.weight.data[0] = 1
    return module(x), module.weight.requires_grad


@case(_mixed)
def data_of_intermediate_assigned(x):
    y = x * 2
    y.data = y.data + 1
    return y * 3, y.requires_grad


@case(_mixed)
def requires_grad_switched_on(x):
    y = x.detach().clone().requires_grad_()
    z = (y * 2).sum()
    return y.requires_grad, y.is_leaf, z.requires_grad, torch.autograd.grad(z, y)[0]


@case(_mixed)
def requires_grad_of_argument(x):
    before = x.requires_grad
    x.requires_grad_(True)
    y = x * 2
    return before, y.requires_grad, x.requires_grad


@case(_mixed)
def requires_grad_attribute_set(x):
    y = x.detach() + 1
    y.requires_grad = True
    z = y * 2
    x.requires_grad = not x.requires_grad
    return z.requires_grad, x.requires_grad, (x * 2).requires_grad


@case(_grads)
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


@case(_mixed)
def detached_in_place(x):
    y = x * 2
    y.detach_()
    return y, y.requires_grad, (y * 2).requires_grad


@case(_mixed)
def argument_detached_in_place(x):
    x.detach_()
    return x.requires_grad, x * 2


@case(_grads)
def detached_view_shares(x):
    y = x * 2
    z = y.detach()
    z.add_(1)
    return y, z, z.requires_grad


@case(_grads, then=_backward)
def retained_gradient(x):
    y = x * 2
    y.retain_grad()
    z = (y * 3).sum()
    return z, y, y.retains_grad, x.retains_grad


@case(_grads)
def retained_gradient_read(x):
    y = x * 2
    y.retain_grad()
    (y * 3).sum().backward()
    return y.grad, x.grad


@case(_mixed)
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


@case(_grads)
def leaf_and_version(x):
    y = x * 2
    before = y._version
    y.add_(1)
    return x.is_leaf, y.is_leaf, y._version - before, y.output_nr


@case(_grads)
def saved_tensors_packed(x):
    seen = []

    def pack(value):
        seen.append(value.shape)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        y = x * x
    return y, seen


@case(_grads)
def graph_walked(x):
    y = (x * 2).sin()
    return y.grad_fn.name(), [type(f).__name__ for f, _ in y.grad_fn.next_functions]


@case(_grads)
def anomaly_inside(x):
    with torch.autograd.detect_anomaly(check_nan=False):
        y = (x * 2).sum()
    return y


@case(_grads)
def backward_under_no_grad_raises(x):
    with torch.no_grad():
        y = (x * 2).sum()
    try:
        y.backward()
    except RuntimeError as error:
        return "does not require grad" in str(error)
    return y


@case(_grads, then=_backward)
def unfrozen_in_loop(x):
    total = x.new_zeros(())
    for step in range(3):
        w = torch.full_like(x, float(step)).requires_grad_(step > 0)
        total = total + (x * w).sum()
    return total


# Hooks of modules that see gradients.


@scenario(lambda made: [(t(2, 3, grad=True),), (t(4, 3, grad=True),)], then=_backward)
def full_backward_hooks():
    torch.manual_seed(0)
    made, seen = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), []
    made[0].register_full_backward_hook(lambda m, gi, go: seen.append(len(gi)))
    made[1].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
    return made, (made, seen)


@scenario(lambda made: [(t(2, 3, grad=True),), (t(4, 3, grad=True),)], then=_backward)
def full_backward_hook_registered_inside():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def program(x):
        handle = made[0].register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,))
        y = made(x)
        handle.remove()
        return y

    return program, made


@case(_grads, then=_backward)
def gradient_reversal(x):
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.view_as(value)

        @staticmethod
        def backward(ctx, grad):
            return -grad

    return Reverse.apply(x) * 2


@case(_grads, then=_backward)
def straight_through(x):
    hard = (x > 0).float()
    return hard + x - x.detach()


# What needs gradients, set on tensors of the caller's.


def _fresh():
    return [(t(3),), (t(2),), (t(3, grad=True),), (t(3, start=0.5),)]


@case(_fresh, then=_backward)
def input_needs_gradients(x):
    x.requires_grad_()
    return (x * x).sum()


@case(_fresh, then=_backward)
def forces(x):
    x.requires_grad = True
    energy = torch.tanh(x * 2).square().sum()
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    return force * energy


@case(_fresh, then=_backward)
def input_needs_gradients_after_its_use(x):
    y = x * 2
    x.requires_grad_()
    return (y * x).sum()


@case(_fresh, then=_backward)
def input_needs_gradients_and_no_more(x):
    x.requires_grad_()
    y = (x * x).sum()
    x.requires_grad_(False)
    return y, x


@case(_fresh)
def input_needs_gradients_without_a_graph(x):
    x.requires_grad_()
    return x.requires_grad, x.is_leaf, x


@case(lambda: [(t(3), torch.tensor([n])) for n in (1, 9, 2)], then=_backward)
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


# Views whose geometry is changed in place.


def _leaf_and_history():
    return [(t(2, 3, grad=True),), (t(2, 3, grad=True) * 2,), (t(2, 3),)]


@case(_leaf_and_history, then=_backward)
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


# Memory that inputs share, changed beside gradients.


def _sharing():
    for size in (6, 7, 6):
        base = t(size)
        yield t(3, grad=True), base[:4], base[2:]
    base = t(6)
    yield t(3, grad=True), base[:4], t(4)
    leaf = t(6, grad=True)
    yield t(3, grad=True), (leaf * 2)[:4], t(4)


@case(_sharing, then=_backward)
def shared_memory_is_changed(w, x, y):
    x.add_(1)
    y.mul_(2)
    return (w * w).sin(), x + y.sum(), x.view(-1)


@case(_sharing, then=_backward)
def shared_memory_is_changed_without_gradients(w, x, y):
    with torch.no_grad():
        x.copy_(w.sum())
    return w * y.detach().sum(), x


def _backward_or_error(result):
    try:
        _backward(result)
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
