"""Parts of training: updates by optimizers and by hand, schedules, clipping, losses."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t


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


def _changing_rates(state):
    module, optimizer = state
    for rate in (0.1, 0.5, 0.1):
        optimizer.param_groups[0]["lr"] = rate
        module.weight.grad = torch.ones(2, 3)
        yield ()


@scenario(_changing_rates)
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


@case(lambda: [(t(3), 0.5), (t(2), 0.1)])
def unrolled_descent(x, rate):
    for step in range(3):
        x = x - rate * (x - 1) * (0.9**step)
    return x


def _scaled():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) / 4)
    return module


@scenario(lambda s: [(t(2, 3),), (t(2, 3),), (t(4, 3),)])
def training_step_by_hand():
    module = _scaled()

    def program(x):
        for p in module.parameters():
            p.grad = None
        loss = module(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.1 * p.grad
        return loss.detach()

    return program, module
