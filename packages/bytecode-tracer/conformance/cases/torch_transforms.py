"""torch.func, autograd.Function, optimizers, custom ops, tensor subclasses and modes."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        return x * x * n

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad * ctx.n + 100, None


class SetupStyle(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.exp(), x + 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[0])

    @staticmethod
    def backward(ctx, first, second):
        return first * ctx.saved_tensors[0] + second


class Logged(torch.Tensor):
    calls = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Logged.calls.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})


class Tagged(torch.Tensor):
    @property
    def doubled(self):
        return self * 2


class Unit:
    """Not a tensor, but torch functions take it."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [a.value if isinstance(a, Unit) else a for a in args]
        return Unit(func(*plain, **(kwargs or {})))


def _grads():
    return [(t(3, grad=True), 2), (t(2, grad=True), 2), (t(3, grad=True), 5)]


@case(_grads, then=lambda y: y.sum().backward())
def autograd_function(x, n):
    return Square.apply(x, n) + 1


@case(lambda: [(t(3),), (t(2),)])
def autograd_function_without_grad(x):
    return Square.apply(x, 3)


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)], then=lambda r: sum(r).sum().backward())
def autograd_function_with_setup(x):
    return SetupStyle.apply(x)


@case(_grads)
def autograd_function_and_gradient_inside(x, n):
    y = Square.apply(x, n).sum()
    y.backward()
    return x.grad.clone()


@case(lambda: [(t(3),), (t(2),)])
def func_grad(x):
    return torch.func.grad(lambda y: (y**2).sum())(x)


@case(lambda: [(t(3), 2), (t(2), 3), (t(3), 3)])
def func_grad_and_value(x, n):
    return torch.func.grad_and_value(lambda y, k: (y * k).sin().sum(), argnums=0)(x, n)


@case(lambda: [(t(3, 2),), (t(4, 2),)])
def vmap(x):
    return torch.vmap(lambda row: row.sum() * row)(x)


@case(lambda: [(t(3, 2), t(2)), (t(4, 2), t(2))])
def vmap_with_in_dims(x, y):
    return torch.func.vmap(torch.dot, in_dims=(0, None))(x, y), torch.vmap(lambda a: a * 2, 1, 1)(x)


@case(lambda: [(t(3),), (t(2),)])
def jvp_and_vjp(x):
    value, push = torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))
    out, pull = torch.func.vjp(torch.cos, x)
    return value, push, out, pull(torch.ones_like(x))


@case(lambda: [(t(3),), (t(2),)])
def jacobians(x):
    f = lambda y: y**2 + y.sum()  # noqa: E731
    return (
        torch.func.jacrev(f)(x),
        torch.func.jacfwd(f)(x),
        torch.func.hessian(lambda y: f(y).sum())(x),
    )


@case(lambda: [(t(4, 3),), (t(2, 3),)])
def per_sample_gradients(x):
    weight = torch.ones(3)

    def loss(w, row):
        return (w * row).sum() ** 2

    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)


@case(lambda: [(t(2, 3), 1), (t(4, 3), 1), (t(2, 3), 2)])
def functional_call(x, n):
    torch.manual_seed(1)
    module = nn.Linear(3, 2)
    values = {name: p * n for name, p in module.named_parameters()}
    return torch.func.functional_call(module, values, (x,))


@scenario(lambda s: [(t(4, 3),), (t(4, 3),), (t(2, 3),)])
def sgd_step():
    torch.manual_seed(1)
    module = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    def program(x):
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return program, module


@scenario(lambda s: [(t(4, 3),), (t(4, 3),), (t(2, 3),)])
def adam_step():
    torch.manual_seed(1)
    module = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)

    def program(x):
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    return program, module


def _rates(state):
    module, optimizer = state
    for rate in (0.1, 0.5, 0.1):
        optimizer.param_groups[0]["lr"] = rate
        module.weight.grad = torch.ones(2, 3)
        yield ()


@scenario(_rates)
def step_only_with_changing_rate():
    torch.manual_seed(1)
    module = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def program():
        optimizer.step()

    return program, (module, optimizer)


@scenario(lambda s: [(t(4, 3),), (t(4, 3),)])
def gradient_clipping():
    torch.manual_seed(1)
    module = nn.Linear(3, 2)

    def program(x):
        module.zero_grad()
        (module(x) * 100).sum().backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        return norm, module.weight.grad

    return program, module


@case(lambda: [(t(3),), (t(2),)])
def schedulers_and_losses(x):
    target = torch.zeros_like(x)
    f = nn.functional
    return f.mse_loss(x, target), f.l1_loss(x, target, reduction="sum"), f.huber_loss(x, target)


@case(lambda: [(t(2, 3), torch.tensor([0, 2])), (t(3, 3), torch.tensor([0, 1, 1]))])
def cross_entropy(x, target):
    return nn.functional.cross_entropy(x, target), nn.CrossEntropyLoss(label_smoothing=0.1)(
        x, target
    )


@case(lambda: [(t(3),), (t(3).as_subclass(Logged),), (t(2).as_subclass(Logged),), (t(3),)])
def subclass_with_torch_function(x):
    return x * 2 + 1, type(x).__name__


@case(lambda: [(t(3).as_subclass(Tagged),), (t(2).as_subclass(Tagged),), (t(3),)])
def subclass_with_property(x):
    return x.doubled if isinstance(x, Tagged) else x, x + 1


@case(lambda: [(t(3),), (t(2),)])
def subclass_made_inside(x):
    y = x.as_subclass(Tagged)
    return y.doubled, type(y + 1).__name__, type(y) is Tagged


@case(lambda: [(Unit(t(3)),), (Unit(t(2)),), (t(3),)])
def torch_function_of_other_object(x):
    return torch.add(x, 1)


class Halving(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result / 2 if func is torch.sin else result


@case(lambda: [(t(3),), (t(2),)])
def torch_function_mode_inside(x):
    with Halving():
        y = torch.sin(x)
    return y, torch.sin(x)


def _mode():
    yield (t(3),)
    with Halving():
        yield (t(3),)
    yield (t(3),)


@case(_mode)
def torch_function_mode_outside(x):
    return torch.sin(x)


@case(lambda: [(t(3),), (t(2),)])
def custom_op(x):
    from conformance.ops import shifted

    return shifted(x, 2.0) * 2


@case(lambda: [(t(3),), (t(2),)])
def custom_op_without_fake(x):
    from conformance.ops import counted

    return counted(x) + 1


@case(lambda: [(t(3),), (t(2),)])
def custom_op_that_mutates(x):
    from conformance.ops import doubled_

    doubled_(x)
    return x + 1


@case(lambda: [(t(3),), (t(2),)])
def ops_namespace(x):
    return torch.ops.aten.add(x, x), torch.ops.aten.relu.default(x), torch._foreach_add([x, x], 1)


@case(lambda: [(t(2, 3, 4, 4),), (t(1, 2, 4, 4),)])
def attention_with_score(x):
    return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


@case(lambda: [(t(3), 0.5), (t(2), 0.1)])
def unrolled_descent(x, rate):
    for step in range(3):
        x = x - rate * (x - 1) * (0.9**step)
    return x
