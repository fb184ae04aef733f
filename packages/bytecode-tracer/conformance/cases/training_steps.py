"""Whole training steps: forward, backward and the optimizer's update in one function."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from conformance.declare import case, scenario, t


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def _batches(state):
    return [(t(2, 3), t(2, 2)), (t(2, 3, start=1), t(2, 2)), (t(4, 3), t(4, 2)), (t(2, 3), t(2, 2))]


def step_of(name, make, *, to_none=True, first=False):
    """Declare a whole training step with an optimizer, called with several batches."""

    def program():
        made = model()
        optimizer = make(made.parameters())

        def step(x, y):
            if first:
                optimizer.zero_grad(set_to_none=to_none)
            loss = F.mse_loss(made(x), y)
            loss.backward()
            optimizer.step()
            if not first:
                optimizer.zero_grad(set_to_none=to_none)
            return loss

        return step, (made, optimizer)

    program.__name__ = program.__qualname__ = name
    scenario(_batches)(program)


_OPTIONS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
}


for _name, (_cls, _given) in _OPTIONS.items():
    for _foreach in (False, True):
        step_of(
            f"{_name}{'_foreach' * _foreach}",
            lambda p, _c=_cls, _g=_given, _f=_foreach: _c(p, **_g, foreach=_f),
        )

step_of("sgd_zeros_kept", lambda p: torch.optim.SGD(p, lr=0.1), to_none=False)

step_of("sgd_cleared_first", lambda p: torch.optim.SGD(p, lr=0.1), first=True)

step_of("sgd_zeroed_first", lambda p: torch.optim.SGD(p, lr=0.1), first=True, to_none=False)


@scenario(_batches)
def gradients_accumulate_over_calls():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    count = [0]

    def step(x, y):
        F.mse_loss(made(x), y).backward()
        count[0] += 1
        if count[0] % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()

    return step, (made, count)


@scenario(_batches)
def gradients_keep_their_identity():
    made = model()
    kept = []

    def step(x, y):
        F.mse_loss(made(x), y).backward()
        if not kept:
            kept.extend(p.grad for p in made.parameters())
        return [p.grad is old for p, old in zip(made.parameters(), kept, strict=True)]

    return step, (made, kept)


@scenario(_batches)
def frozen_parameters():
    made = model()
    made[0].requires_grad_(False)
    optimizer = torch.optim.Adam(made.parameters(), lr=0.1)

    def step(x, y):
        loss = F.mse_loss(made(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach(), [p.grad is None for p in made.parameters()]

    return step, made


def _freezing(state):
    for number, batch in enumerate(_batches(state)):
        state[0].requires_grad_(number % 2 == 0)
        state.zero_grad()
        yield batch


@scenario(_freezing)
def frozen_between_the_calls():
    made = model()

    def step(x, y):
        F.mse_loss(made(x), y).backward()
        return [None if p.grad is None else p.grad.sum() for p in made.parameters()]

    return step, made


@scenario(lambda state: [(t(2, 3),), (t(4, 3),), (t(2, 3, start=2),)])
def shared_parameters():
    torch.manual_seed(0)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(3, 3)
            self.other = nn.Linear(3, 3, bias=False)
            self.other.weight = self.one.weight

        def forward(self, x):
            return self.other(torch.relu(self.one(x)))

    made = Tied()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)

    def step(x):
        loss = made(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, made


@scenario(_batches)
def several_losses():
    made = model()

    def step(x, y):
        out = made(x)
        one, two = F.mse_loss(out, y), out.abs().sum()
        torch.autograd.backward([one, two], [None, torch.tensor(0.5)])
        return one, two

    return step, made


@scenario(_batches)
def losses_one_after_the_other():
    made = model()

    def step(x, y):
        hidden = made[1](made[0](x))
        first = hidden.square().mean()
        first.backward(retain_graph=True)
        second = F.mse_loss(made[2](hidden), y)
        second.backward()
        return first.detach(), second.detach()

    return step, made


@scenario(_batches)
def to_a_part_of_the_parameters():
    made = model()

    def step(x, y):
        F.mse_loss(made(x), y).backward(inputs=list(made[2].parameters()))
        return [p.grad is None for p in made.parameters()]

    return step, made


@scenario(_batches)
def clipped():
    made = model()
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.01)

    def step(x, y):
        optimizer.zero_grad()
        F.mse_loss(made(x) * 10, y).backward()
        norm = nn.utils.clip_grad_norm_(made.parameters(), 0.5)
        optimizer.step()
        return norm

    return step, made


def _scheduled(state):
    for batch in (*_batches(state), *_batches(state)):
        yield batch
        state[1].step()


@scenario(_scheduled)
def scheduled_outside():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)

    def step(x, y):
        F.mse_loss(made(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, (made, scheduler)


@scenario(_batches)
def scheduled_inside():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def step(x, y):
        F.mse_loss(made(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        return scheduler.get_last_lr()

    return step, (made, scheduler)


@scenario(lambda state: [(t(4, 3), 1), (t(6, 3), 2), (t(4, 3), 1), (t(4, 3), 3)])
def dropout_and_batch_norm():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)

    def step(x, count):
        for _ in range(count):
            loss = made(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return step, made


@case(lambda: [(t(3, grad=True), [1, 2]), (t(2, grad=True), [3]), (t(3, grad=True), [1, 2])])
def after_objects_were_changed(x, seen):
    seen.append(4)
    y = (x * sum(seen)).square().sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    seen.append(5)
    g.sum().backward()
    return g, x.grad, seen


@scenario(_batches)
def under_autocast():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)

    def step(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(made(x).float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, made


@scenario(_batches)
def with_a_checkpoint():
    from torch.utils.checkpoint import checkpoint

    made = model()

    def step(x, y):
        hidden = checkpoint(lambda v: made[1](made[0](v)), x, use_reentrant=False)
        loss = F.mse_loss(made[2](hidden), y)
        loss.backward()
        return loss.detach(), [p.grad.sum() for p in made.parameters()]

    return step, made


@scenario(_batches)
def with_a_reentrant_checkpoint():
    from torch.utils.checkpoint import checkpoint

    made = model()

    def step(x, y):
        hidden = checkpoint(made[1], made[0](x), use_reentrant=True)
        loss = F.mse_loss(made[2](hidden), y)
        loss.backward()
        return loss.detach(), [p.grad.sum() for p in made.parameters()]

    return step, made


@scenario(_batches)
def with_a_scaler():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(x, y):
        scaler.scale(F.mse_loss(made(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step, made


@scenario(_batches)
def with_an_average_of_the_weights():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    shadow = [p.detach().clone() for p in made.parameters()]

    def step(x, y):
        F.mse_loss(made(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(shadow, list(made.parameters()), 0.1)

    return step, (made, shadow)


@scenario(lambda state: [(t(3, 3), 0), (t(3, 3), 1), (t(3, 3, start=1), 0), (t(3, 3), 1)])
def two_optimizers_in_turn():
    torch.manual_seed(0)
    one, other = nn.Linear(3, 3), nn.Linear(3, 1)
    first = torch.optim.Adam(one.parameters(), lr=0.01)
    second = torch.optim.SGD(other.parameters(), lr=0.1)

    def step(x, turn):
        loss = other(torch.tanh(one(x))).mean()
        if turn:
            first.zero_grad()
            (-loss).backward(inputs=list(one.parameters()))
            first.step()
        else:
            second.zero_grad()
            loss.backward(inputs=list(other.parameters()))
            second.step()
        return loss.detach()

    return step, (one, other)


@scenario(_batches)
def micro_batches():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)

    def step(x, y):
        total = 0.0
        for part, wanted in zip(x.split(2), y.split(2), strict=True):
            loss = F.mse_loss(made(part), wanted) / 2
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step, made


@scenario(_batches)
def penalty_on_gradients():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)

    def step(x, y):
        x = x.clone().requires_grad_()
        loss = F.mse_loss(made(x), y)
        (of_x,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + of_x.square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), x.grad

    return step, made


@scenario(_batches)
def optimizer_in_the_backward():
    made = model()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in made.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in made.parameters():
        p.register_post_accumulate_grad_hook(update)

    def step(x, y):
        loss = F.mse_loss(made(x), y)
        loss.backward()
        return loss.detach()

    return step, made
