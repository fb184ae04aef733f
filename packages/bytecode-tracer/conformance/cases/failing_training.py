"""Models and gradients whose graphs fail after they changed tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from conformance.declare import case, scenario, t
from conformance.midway import Own
from conformance.midway import needing_gradients as _with_gradients


def _batches(*state):
    return [(t(4, 3, start=n), torch.tensor([0, 1, n, 2]), Own()) for n in (1, 9, 2, -200)]


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.normal = torch.nn.BatchNorm1d(3)
        self.linear = torch.nn.Linear(3, 3)
        self.calls = 0
        self.last = None

    def forward(self, x):
        self.calls += 1
        self.last = self.normal(x)
        return self.linear(self.last)


@scenario(_batches, traceback=True)
def statistics_of_a_model():
    torch.manual_seed(0)
    model = Classifier()

    def loss(x, target, own):
        y = model(x)
        own.n += 1
        found = F.cross_entropy(y, target)
        own.n += 1
        return found

    return loss, model


def _steps(name, first, **options):
    def made():
        torch.manual_seed(0)
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)

        def step(x, target, own):
            if first:
                optimizer.zero_grad(set_to_none=first == "none")
            loss = F.cross_entropy(model(x), target)
            own.log.append(loss.detach())
            loss.backward()
            optimizer.step()
            if not first:
                optimizer.zero_grad()
            own.n += 1
            return loss.detach()

        return step, (model, optimizer)

    made.__name__ = name
    scenario(_batches, traceback=True)(made)


_steps("a_step", None)


_steps("a_step_that_clears_first", "none")


_steps("a_step_that_zeroes_first", "zeros")


_steps("a_step_with_foreach", "none", foreach=True)


_steps("a_step_with_momentum", None, momentum=0.9)


@scenario(_batches, traceback=True)
def two_steps():
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x, target, own):
        for shift in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), (target + shift).clamp_max(2 + 9 * shift))
            loss.backward()
            optimizer.step()
            own.n += 1
        return loss.detach()

    return step, (model, optimizer)


@scenario(_batches, traceback=True)
def gradients_that_accumulate():
    torch.manual_seed(0)
    model = Classifier()

    def step(x, target, own):
        for part, wanted in zip(x.chunk(2), target.chunk(2), strict=True):
            own.n += 1
            F.cross_entropy(model(part), wanted).backward()

    return step, model


@scenario(_batches, traceback=True)
def hooks_of_modules():
    torch.manual_seed(0)
    model, calls = Classifier(), []
    model.register_forward_pre_hook(lambda module, args: calls.append("before"))
    model.normal.register_forward_hook(lambda module, args, y: calls.append(y.shape))
    model.register_forward_hook(lambda module, args, y: calls.append(F.one_hot(args[1], 3)))

    def forward(self, x, target):
        return Classifier.forward(self, x)

    model.forward = forward.__get__(model)
    return lambda x, target, own: model(x, target), (model, calls)


class Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(4, 3))
        self.length = 0

    def forward(self, x, place, own):
        self.length += 1
        self.keys.index_copy_(0, place, x)
        own.n = self.length
        return self.keys.sum()


@scenario(
    lambda *state: [(t(2, 3), torch.tensor([0, n]), Own()) for n in (1, 9, 2, 7)], traceback=True
)
def a_cache_that_is_half_written():
    return Cache()


@scenario(
    lambda *state: [(t(2, 3), torch.tensor([0, n]), Own()) for n in (1, 9, 2, 7)], traceback=True
)
def caches_of_layers():
    layers = torch.nn.ModuleList([Cache(), Cache()])

    def run(x, place, own):
        for n, layer in enumerate(layers):
            own.log.append(n)
            layer(x + n, place if n else place.clamp_max(3), own)
        own.log.append("done")
        return own.n

    return run, layers


@case(_with_gradients, traceback=True)
def gradients_of_what_was_made(x, place, table, own):
    own.h = table * 2
    x.add_(1)
    (first,) = torch.autograd.grad(own.h.sum(), table)
    own.log.append(first)
    return own.h[place]


@case(_with_gradients, traceback=True)
def an_input_that_gets_a_history(x, place, table, own):
    own.n += 1
    x.add_(table.sum())
    own.n += 1
    y = table[place]
    own.n += 1
    return y


@case(_with_gradients, traceback=True)
def a_hook_of_a_tensor(x, place, table, own):
    x.add_(1)
    table.register_hook(lambda gradient: own.log.append("hook"))
    y = table[place]
    own.n = 1
    return y


@case(_with_gradients, traceback=True)
def a_checkpoint(x, place, table, own):
    own.n = 1
    x.add_(1)
    y = torch.utils.checkpoint.checkpoint(lambda v: v[place] * 2, table, use_reentrant=False)
    own.n = 2
    return y


class Looked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, place):
        return table[place] * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.sum().expand(4), None


@case(_with_gradients, traceback=True)
def a_function_of_autograd(x, place, table, own):
    own.n = 1
    x.add_(1)
    y = Looked.apply(table, place)
    own.n = 2
    return y
