"""`torch.autograd.Function`: saved tensors, flags, changed and passed arguments, what it reads."""

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


def _leaves_and_numbers():
    return [(t(3, grad=True), 2), (t(2, grad=True), 2), (t(3, grad=True), 5)]


@case(_leaves_and_numbers, then=lambda y: y.sum().backward())
def autograd_function(x, n):
    return Square.apply(x, n) + 1


@case(lambda: [(t(3),), (t(2),)])
def autograd_function_without_grad(x):
    return Square.apply(x, 3)


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)], then=lambda r: sum(r).sum().backward())
def autograd_function_with_setup(x):
    return SetupStyle.apply(x)


@case(_leaves_and_numbers)
def autograd_function_and_gradient_inside(x, n):
    y = Square.apply(x, n).sum()
    y.backward()
    return x.grad.clone()


class Returned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_non_differentiable(y)
        ctx.set_materialize_grads(False)
        return x, y, x * 2

    @staticmethod
    def backward(ctx, first, second, third):
        return third * 10, None


@case(lambda: [(t(3, grad=True), t(3)), (t(3), t(3)), (t(2, grad=True), t(2))])
def autograd_function_returns_arguments(x, y):
    a, b, c = Returned.apply(x, y)
    return a is x, b is y, a, b, c, a.requires_grad, b.requires_grad


class Doubled_(torch.autograd.Function):  # noqa: N801
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@case(lambda: [(t(3, grad=True),), (t(3),), (t(2, grad=True),)])
def autograd_function_marks_dirty(x):
    y = x + 0
    z = Doubled_.apply(y)
    return z is y, z, y


class Flags(torch.autograd.Function):
    seen = []

    @staticmethod
    def forward(ctx, x, y, n):
        Flags.seen.append(ctx.needs_input_grad)
        return x * y * n

    @staticmethod
    def backward(ctx, grad):
        return grad, grad, None


@case(lambda: [(t(2, grad=True), t(2)), (t(2), t(2)), (t(2), t(2, grad=True))])
def autograd_function_flags(x, y):
    with torch.no_grad():
        first = Flags.apply(x, y, 2)
    return first, Flags.apply(x, y, 3), Flags.seen


@case(lambda: [(t(3, grad=True), 2), (t(3, grad=True), 3)])
def gradient_of_own_function(x, n):
    y = Square.apply(x, n).sum()
    return torch.autograd.grad(y, x), torch.autograd.grad((x**n).sum(), [x], create_graph=True)


def _leaves():
    return [(t(3, grad=True), t(3, grad=True)), (t(2, grad=True), t(2)), (t(3), t(3, grad=True))]


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)])
def function_on_the_way(x):
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append("backward")
            return gradient * 2

    Double.apply(x).sum().backward()
    return x.grad, seen


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)])
def function_without_effects_on_the_way(x):
    y = _Cube.apply(x) + _Chosen.apply(x, x.detach() * 2)
    y.square().sum().backward()
    return x.grad


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return value**3

    @staticmethod
    def backward(ctx, gradient):
        (value,) = ctx.saved_tensors
        return gradient * 3 * value**2


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(value, other):
        return value * other

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.other = 3
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, gradient):
        (other,) = ctx.saved_tensors
        return gradient * other * ctx.other, None


class _Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, weight):
        return value.view_as(value), weight * 2

    @staticmethod
    def backward(ctx, gradient, other):
        return gradient, None


@case(_leaves)
def function_that_passes_gradients_on(x, y):
    z, w = _Same.apply(x, y)
    (z + y + w).square().sum().backward()
    if x.grad is not None:
        x.grad.add_(1)
    return x.grad, y.grad


SCALE = 2.0


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value * 1

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient * SCALE


def _scales(state):
    global SCALE
    for scale in (2.0, 3.0, 2.0, 5.0):
        SCALE = scale
        yield (t(4, 3),)


@scenario(_scales)
def function_that_reads_a_global():
    made = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = _Scaled.apply(made(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, made


class _Counting(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, value):
        ctx.set_materialize_grads(False)
        return value * 1, value * 2

    @staticmethod
    def backward(ctx, gradient, other):
        return gradient * 2 if other is None else gradient + other


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)])
def function_that_is_given_no_gradients(x):
    one, _ = _Counting.apply(x)
    one.sum().backward()
    return x.grad
