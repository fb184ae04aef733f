"""`tensor.data = other`: one object over other memory, of arguments, parameters and results."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t
from conformance.gradients import needing_gradients, some_needing_gradients


def _pairs():
    return [(t(2, 3), t(2, 3, start=2)), (t(4, 3), t(4, 3, start=1)), (t(2, 3), t(3, start=1))]


def _needing():
    return [(t(2, 3, grad=True), t(2, 3, start=2)), (t(3, grad=True), t(3)), (t(2, 3), t(2, 3))]


@case(_pairs)
def of_a_result(x, v):
    y = x + 1
    same = y
    y.data = v * 2
    y.add_(1)
    return y, same is y, y * 2


@case(_pairs)
def of_a_result_that_shares(x, v):
    y = x + 1
    y.data = v
    y.mul_(3)
    return y, v


@case(_pairs)
def of_a_result_with_views(x, v):
    y = x + 1
    row = y[0]
    y.data = v
    row.mul_(3)
    return y, row


@case(_pairs)
def of_an_argument(x, v):
    y = x * 2
    x.data = v * 3
    return x, y, x + 1, x.shape


@case(_pairs)
def of_an_argument_to_another(x, v):
    x.data = v
    x.add_(1)
    return x, v, x.data_ptr() == v.data_ptr()


@case(_pairs)
def of_an_argument_twice(x, v):
    old = x.data
    x.data = v + 1
    x.data = x.data * 2
    old.add_(5)
    return old, x


@case(_pairs)
def swapped(x, v):
    x.data, v.data = v.data, x.data
    return x - 1, v - 1


@case(_pairs)
def to_what_is_transposed_later(x, v):
    w = v * 2
    x.data = w
    w.t_()
    return x, w


@case(_pairs)
def to_another_dtype(x, v):
    x.data = v.to(torch.float64)
    return x.dtype, x * 2, x


@case(_pairs)
def printed_before(x, v):
    text = f"{x.sum()}"
    x.data = v
    return text, x


@case(_pairs)
def back_again(x, v):
    old = x.data
    x.data = v
    y = x * 2
    x.data = old
    return x, y


@case(_needing)
def under_gradients(x, v):
    x.data = v * 2
    y = (x * 3).sum()
    if y.requires_grad:
        y.backward()
    return x.grad, y.detach(), x.requires_grad, x.is_leaf


@case(lambda: [(t(3), t(3, start=1), t(3, grad=on)) for on in (True, False, True)])
def with_a_history_later(x, v, w):
    x.data = v * 2
    x.add_(w)
    return x, x.requires_grad


@case(_needing)
def without_gradients(x, v):
    with torch.no_grad():
        x.data = v * 2
        y = x * 3
    return y, x, x.requires_grad


@case(_needing)
def after_it_was_used(x, v):
    y = (x * x).sum()
    x.data = v * 2
    if y.requires_grad:
        y.backward()
    return x.grad, y.detach()


@case(_needing)
def read_and_set(x, v):
    x.data = x.data * 2 + v
    return x.detach() + 1


@case(lambda: [(t(2, 3, grad=True), t(2, 3, dtype=torch.int64)), (t(3), t(3, dtype=torch.int64))])
def to_integers(x, v):
    try:
        x.data = v
    except RuntimeError as error:
        return str(error)
    return x, x.dtype


@case(lambda: [(t(2, 3), t(2, 3, dtype=torch.complex64)), (t(3), t(3, dtype=torch.complex64))])
def to_a_conjugate(x, v):
    x.data = v.conj()
    return x, x.is_conj(), x * 2


@case(_needing)
def of_a_history(x, v):
    y = x * 2
    y.data = v
    z = (y * y).sum()
    if z.requires_grad:
        z.backward()
    return y, x.grad


@case(_pairs)
def raises_after(x, v):
    x.data = v * 2
    raise ValueError(tuple(x.shape))


@case(_pairs)
def then_breaks(x, v):
    x.data = v * 2
    if float(x.sum()) > 1e9:
        return x
    return x + 1, x


def _steps(model):
    for n in range(4):
        for p in model.parameters():
            p.grad = torch.full_like(p, float(n))
        yield (t(2, 3),)


@scenario(_steps)
def parameters_in_a_step():
    model = nn.Linear(3, 3)

    def step(x):
        for p in model.parameters():
            p.data = p.data - 0.1 * p.grad
            p.grad = None
        with torch.no_grad():
            return model(x)

    with torch.no_grad():
        for p in model.parameters():
            p.copy_(t(*p.shape))
    return step, model


@scenario(lambda model: [(n,) for n in (1, 2, 3, 1)])
def converted_and_back():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(t(*p.shape))

    def convert(n):
        model.double() if n % 2 else model.float()
        return [p.dtype for p in model.parameters()]

    return convert, model


@scenario(lambda model: [(t(2, 3),), (t(4, 3),), (t(2, 3),)])
def clipped_weights():
    class Clipped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)
            with torch.no_grad():
                self.inner.weight.copy_(t(2, 3))
                self.inner.bias.zero_()

        def forward(self, x):
            self.inner.weight.data = self.inner.weight.data.clamp(-0.5, 0.5)
            loss = self.inner(x).square().sum()
            loss.backward()
            return loss.detach()

    model = Clipped()
    return model, model


@case(some_needing_gradients)
def data_read(x):
    d = x.data
    d2 = d * 2
    return d2, d.requires_grad, d is x, x.data.shape


@case(some_needing_gradients)
def data_read_and_changed(x):
    d = x.data
    d.add_(1)
    x.data.mul_(2)
    return x * 2, d


@case(some_needing_gradients)
def data_assigned(x):
    x.data = torch.zeros(x.shape)
    return x + 1


@case(needing_gradients)
def data_assigned_to_other_shape(x):
    x.data = torch.ones(5)
    return x.shape, x * 2


@case(lambda: [(nn.Linear(3, 2), t(2, 3)), (nn.Linear(3, 1), t(2, 3))])
def data_of_parameters(module, x):
    module.weight.data.fill_(0.5)
    module.bias.data = torch.zeros_like(module.bias.data)
    module.weight.data[0] = 1
    return module(x), module.weight.requires_grad


@case(some_needing_gradients)
def data_of_intermediate_assigned(x):
    y = x * 2
    y.data = y.data + 1
    return y * 3, y.requires_grad
