"""Programs that gradients flow through, or that change what they are given, in two worlds.

Each case gives what makes a function and what is done with it: it is made once for eager and once
for the compiled function, of equal states. Those whose name ends in `_stays` are the same in each
process, and are restored where they can be.
"""

import os
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

PHASE = int(os.environ.get("PHASE", "0"))


class Steps(NamedTuple):
    """What makes a function and what is done with it, which gives tensors."""

    build: Any


def given(*shape, grad=False):
    values = torch.linspace(-1.5, 1.5, torch.Size(shape).numel()).reshape(shape)
    return values.cos().requires_grad_(grad)


def model():
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def gradients(module, *others):
    return [each.grad for each in (*module.parameters(), *others) if each.grad is not None]


def raised(call):
    """How an error begins, as a tensor; and nothing where there is none."""
    try:
        call()
    except RuntimeError as error:
        return [torch.tensor(list(str(error).encode()[:60]))]
    return [torch.zeros(1)]


def case_loss_stays():
    def build():
        net, x = model(), given(5, 6, grad=True)

        def f(x):
            return net(x).square().mean()

        def steps(f):
            f(x).backward()
            loss = f(x)
            loss.backward()
            return [loss, *gradients(net, x)]

        return f, steps

    return Steps(build)


def case_sgd_stays():
    def build():
        net, x = model(), given(5, 6)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def f(x):
            return F.cross_entropy(net(x), torch.arange(5) % 3)

        def steps(f):
            losses = []
            for _ in range(3):
                optimizer.zero_grad()
                losses.append(f(x))
                losses[-1].backward()
                optimizer.step()
            return [*losses, *net.parameters()]

        return f, steps

    return Steps(build)


def case_hooks_stay():
    def build():
        net, x = model(), given(5, 6, grad=True)
        x.register_hook(lambda gradient: gradient * 2)
        net[0].weight.register_hook(lambda gradient: gradient + 1)

        def f(x):
            return net(x)

        def steps(f):
            y = f(x)
            y.register_hook(lambda gradient: gradient * 3)
            y.sum().backward()
            return [y, *gradients(net, x)]

        return f, steps

    return Steps(build)


def case_frozen_parameters():
    def build():
        net, x = model(), given(5, 6)
        net[0].requires_grad_(bool(PHASE))

        def f(x):
            return net(x).sum()

        def steps(f):
            f(x).backward()
            return gradients(net)

        return f, steps

    return Steps(build)


def case_requires_grad_set_later_stays():
    def build():
        net, x = model(), given(5, 6)

        def f(x):
            return net(x).sum()

        def steps(f):
            f(x).backward()
            found = [each.clone() for each in gradients(net)]
            net[0].requires_grad_(False)
            net.zero_grad()
            f(x).backward()
            found += gradients(net)
            net.requires_grad_(False)
            last = f(x)
            return [*found, last, torch.tensor(float(last.requires_grad))]

        return f, steps

    return Steps(build)


def case_no_grad_calls_stay():
    def build():
        net, x = model(), given(5, 6)

        def f(x):
            return net(x).sum()

        def steps(f):
            with torch.no_grad():
                first = f(x)
            second = f(x)
            second.backward()
            flags = torch.tensor([float(each.requires_grad) for each in (first, second)])
            return [first, second, flags, *gradients(net)]

        return f, steps

    return Steps(build)


def case_several_results_stay():
    def build():
        net, other, x = model(), nn.Linear(6, 2), given(5, 6, grad=True)

        def f(x):
            return net(x), other(x).exp(), x * 2

        def steps(f):
            found = []
            for chosen in ((0,), (1, 2), (0, 1, 2)):
                for each in (*net.parameters(), *other.parameters(), x):
                    each.grad = None
                results = f(x)
                sum(results[n].sum() for n in chosen).backward()
                given = [torch.tensor(float(p.grad is None)) for p in net.parameters()]
                found += [*given, *gradients(net, *other.parameters(), x)]
            return found

        return f, steps

    return Steps(build)


def case_second_backward_stays():
    def build():
        net, x = model(), given(5, 6, grad=True)

        def f(x):
            return net(x).sum()

        def steps(f):
            y = f(x)
            y.backward(retain_graph=True)
            y.backward()
            return [*gradients(net, x), *raised(y.backward)]

        return f, steps

    return Steps(build)


def case_gradients_of_gradients_stay():
    def build():
        net, x = model(), given(5, 6, grad=True)

        def f(x):
            return net(x).square().sum()

        def steps(f):
            (gradient,) = torch.autograd.grad(f(x), x, create_graph=True)
            gradient.square().sum().backward()
            return [gradient, *gradients(net, x)]

        return f, steps

    return Steps(build)


def case_batches_of_gradients_stay():
    def build():
        x = given(4, 3, grad=True)

        def f(x):
            return x.sin() * x

        def steps(f):
            y = f(x)
            tangents = torch.eye(12).reshape(12, 4, 3)
            return [*torch.autograd.grad(y, x, tangents, is_grads_batched=True)]

        return f, steps

    return Steps(build)


def case_other_tangents_stay():
    def build():
        x = given(4, 3, grad=True)

        def f(x):
            return x.exp() * x

        def steps(f):
            f(x).backward(given(3, 4).t())
            f(x).backward(torch.ones(1, 1).expand(4, 3))
            return [x.grad]

        return f, steps

    return Steps(build)


def case_change_before_backward_stays():
    def build():
        x, weight = given(4, 3, grad=True), given(3, 3, grad=True)

        def f(x, weight):
            return (x @ weight).tanh()

        def steps(f):
            y = f(x, weight)
            with torch.no_grad():
                weight.mul_(2)
            found = raised(y.sum().backward)
            y = f(x, weight)
            y.sum().backward()
            return [*found, x.grad, weight.grad]

        return f, steps

    return Steps(build)


def case_batch_norm_stays():
    def build():
        net = nn.Sequential(
            nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
        )
        x = given(3, 2, 8, 8, grad=True)

        def f(x):
            return net(x).sum()

        def steps(f):
            f(x).backward()
            f(x).backward()
            found = [*gradients(net, x), *(each.clone().double() for each in net.buffers())]
            net.eval()
            return [*found, f(x)]

        return f, steps

    return Steps(build)


def case_statistics_alone_stay():
    def build():
        net, x = nn.BatchNorm1d(6).requires_grad_(False), given(5, 6)

        def f(x):
            return net(x)

        def steps(f):
            return [f(x), f(x), *(each.double() for each in net.buffers())]

        return f, steps

    return Steps(build)


def case_dropout_stays():
    def build():
        net, x = nn.Sequential(model(), nn.Dropout(0.5)), given(40, 6, grad=True)

        def f(x):
            return net(x)

        def steps(f):
            first, second = f(x), f(x)
            (first * second).sum().backward()
            return [first, second, *gradients(net, x), torch.rand(3)]

        return f, steps

    return Steps(build)


def case_cache_stays():
    def build():
        cache, x = torch.zeros(4, 6), given(2, 6)

        def f(cache, x, start):
            cache.narrow(0, start, 2).copy_(x)
            return cache.sum(0), cache[1:3], cache

        def steps(f):
            found = [*f(cache, x, 2), *f(cache, x + 1, 2)]
            found[4].add_(1)
            return [*found, cache, torch.tensor(float(found[2] is cache))]

        return f, steps

    return Steps(build)


def case_change_of_an_input_with_a_history_stays():
    def build():
        x = given(4, 3, grad=True)

        def f(y):
            y.mul_(2)
            return y.sin()

        def steps(f):
            y = x * 1
            z = f(y)
            (z + y).sum().backward()
            return [z, y, x.grad, torch.tensor(y._version)]

        return f, steps

    return Steps(build)


def case_views_of_results_stay():
    def build():
        x = given(4, 6, grad=True)

        def f(x):
            y = x.exp()
            return y, y[1:], x.view(6, 4), x

        def steps(f):
            y, part, view, itself = f(x)
            (part.sum() + view.square().sum() + y.sum()).backward()
            flags = [float(itself is x), float(part._base is y), float(view._base is x)]
            return [y, part, view, x.grad, torch.tensor(flags)]

        return f, steps

    return Steps(build)


def case_step_inside_stays():
    def build():
        weight, x = given(6, 3, grad=True), given(5, 6)

        def f(weight, x):
            loss = (x @ weight).square().mean()
            (gradient,) = torch.autograd.grad(loss, weight)
            return loss.detach(), weight.detach() - 0.1 * gradient

        def steps(f):
            return [*f(weight, x), *f(weight, x)]

        return f, steps

    return Steps(build)


def case_anomaly_mode():
    def build():
        net, x = model(), given(5, 6)

        def f(x):
            return net(x).sum()

        def steps(f):
            f(x).backward()
            with torch.autograd.detect_anomaly(check_nan=False):
                f(x).backward()
            return gradients(net)

        return f, steps

    return Steps(build)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (3 + PHASE)


def case_own_backward():
    def build():
        x = given(4, 3, grad=True)

        def f(x):
            return Doubled.apply(x.sin())

        def steps(f):
            f(x).sum().backward()
            return [x.grad]

        return f, steps

    return Steps(build)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.scale = 1.0 + PHASE

    if PHASE:

        def forward(self, x):
            return self.linear(x).tanh() * self.scale

    else:

        def forward(self, x):
            return self.linear(x).sigmoid() * self.scale


def case_changed_module():
    def build():
        net, x = Scaled(), given(5, 6, grad=True)

        def f(x):
            return net(x).sum()

        def steps(f):
            f(x).backward()
            return gradients(net, x)

        return f, steps

    return Steps(build)


def case_half_the_batch_needs_gradients():
    def build():
        net, x = model(), given(5, 6, grad=bool(PHASE))

        def f(x):
            return net(x * 2).sum()

        def steps(f):
            f(x).backward()
            return gradients(net, x)

        return f, steps

    return Steps(build)


def case_shared_memory():
    def build():
        memory = given(8)
        one, other = memory[:6], memory[2:] if PHASE else given(6)

        def f(one, other):
            one.mul_(2)
            return one + other

        def steps(f):
            return [f(one, other), memory, other]

        return f, steps

    return Steps(build)


def case_generators_stay():
    def build():
        x = given(40, 6, grad=True)

        def f(x):
            noise = torch.randn_like(x)
            return x * noise, torch.rand(3)

        def steps(f):
            y, drawn = f(x)
            y.sum().backward()
            with torch.no_grad():
                again, _ = f(x)
            return [y, drawn, again, x.grad, torch.rand(2)]

        return f, steps

    return Steps(build)
