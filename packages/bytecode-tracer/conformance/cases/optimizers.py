"""Optimizers, schedulers, clipping, scaling, averaging: training steps, and their parts."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def with_gradients(made, scale=1.0):
    """Gradients as a backward pass leaves them, other ones each time."""
    for number, parameter in enumerate(made.parameters(), 1):
        parameter.grad = (torch.arange(parameter.numel()) / number - scale).reshape(parameter.shape)


def _five(state):
    for step in range(5):
        with_gradients(state[0], step + 0.5)
        yield ()


def steps_of(name, make):
    """Declare `optimizer.step()` compiled, called five times with other gradients."""

    def program():
        made = model()
        optimizer = make(made.parameters())

        def step():
            optimizer.step()

        return step, (made, optimizer)

    program.__name__ = program.__qualname__ = name
    scenario(_five)(program)


_OPTIONS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "sgd_nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "sgd_maximize": (torch.optim.SGD, {"lr": 0.1, "maximize": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adam_amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    "adam_capturable_beta": (torch.optim.Adam, {"lr": 0.01, "betas": (0.5, 0.6)}),
    "adam_lr_tensor": (torch.optim.Adam, {"lr": torch.tensor(0.01)}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "adamax": (torch.optim.Adamax, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "rmsprop_centered": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "rprop": (torch.optim.Rprop, {}),
    "asgd": (torch.optim.ASGD, {}),
    "adafactor": (torch.optim.Adafactor, {}),
}
_FOREACH = ("sgd", "adam", "adamw", "rmsprop", "adagrad", "radam")
for _name, (_cls, _given) in _OPTIONS.items():
    steps_of(_name, lambda p, _cls=_cls, _given=_given: _cls(p, **_given))
    if _name.split("_")[0] in _FOREACH and _name != "adam_lr_tensor":
        steps_of(
            f"{_name}_foreach",
            lambda p, _cls=_cls, _given=_given: _cls(p, **_given, foreach=True),
        )
for _name in ("sgd", "adam", "adamw", "adagrad"):
    _cls = _OPTIONS[_name][0]
    steps_of(f"{_name}_fused", lambda p, _cls=_cls: _cls(p, lr=0.1, fused=True))


def _sparse():
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    return table, optimizer


def _sparse_sets(state):
    for row in (1, 2, 1):
        state[1].zero_grad()
        state[0](torch.tensor([row, 3])).sum().backward()
        yield ()


@scenario(_sparse_sets)
def sparse_adam():
    table, optimizer = _sparse()

    def step():
        optimizer.step()

    return step, (table, optimizer)


def _with_closure(state):
    for step in range(3):
        yield (t(2, 3, start=step),)


@scenario(_with_closure)
def lbfgs_with_closure():
    made = model()
    optimizer = torch.optim.LBFGS(made.parameters(), max_iter=2)

    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = made(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    return step, (made, optimizer)


@scenario(_with_closure)
def sgd_with_closure():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)

    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = made(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    return step, (made, optimizer)


# The method itself as the program.


@scenario(_five)
def bound_step():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)
    return optimizer.step, (made, optimizer)


@scenario(_five)
def bound_step_of_adam():
    made = model()
    optimizer = torch.optim.Adam(made.parameters(), lr=0.1)
    return optimizer.step, (made, optimizer)


@scenario(_five)
def zero_grad_compiled():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)

    def clear():
        optimizer.step()
        optimizer.zero_grad()

    return clear, (made, optimizer)


@scenario(_five)
def zero_grad_to_zeros():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)

    def clear():
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return clear, (made, optimizer)


# Settings change between the steps.


def _rates(state):
    for rate in (0.1, 0.2, 0.05, 0.05, 0.3, 1, 0.7, 0.11, 0.12, 0.13, 0.14):
        with_gradients(state[0], rate)
        for group in state[1].param_groups:
            group["lr"] = rate
        yield ()


@scenario(_rates)
def rate_changes():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)

    def step():
        optimizer.step()

    return step, (made, optimizer)


@scenario(_rates)
def rate_changes_adam():
    made = model()
    optimizer = torch.optim.Adam(made.parameters(), lr=0.1)

    def step():
        optimizer.step()

    return step, (made, optimizer)


def _settings(state):
    made, optimizer = state
    with_gradients(made, 1)
    yield ()
    optimizer.param_groups[0]["weight_decay"] = 0.1
    yield ()
    optimizer.param_groups[0]["momentum"] = 0.9
    yield ()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.5})
    optimizer.param_groups[1]["params"][0].grad = torch.ones(2)
    yield ()
    made[0].bias.grad = None
    yield ()
    optimizer.state.clear()
    yield ()
    optimizer.load_state_dict(optimizer.state_dict())
    yield ()
    made[0].weight.requires_grad_(False)
    yield ()


@scenario(_settings)
def settings_change():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)

    def step():
        optimizer.step()

    return step, (made, optimizer)


@scenario(_five)
def parameter_groups():
    made = model()
    groups = [
        {"params": made[0].parameters(), "lr": 0.2},
        {"params": made[2].parameters(), "weight_decay": 0.1},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)

    def step():
        optimizer.step()

    return step, (made, optimizer)


# Schedulers.


def scheduled(name, make):
    """Declare a step of an optimizer and of its scheduler."""

    def program():
        made = model()
        optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
        scheduler = make(optimizer)

        def step():
            optimizer.step()
            scheduler.step()
            return scheduler.get_last_lr()

        return step, (made, optimizer, scheduler)

    program.__name__ = program.__qualname__ = name
    scenario(_five)(program)


_lr = torch.optim.lr_scheduler
scheduled("step_lr", lambda o: _lr.StepLR(o, 2, 0.5))
scheduled("exponential_lr", lambda o: _lr.ExponentialLR(o, 0.9))
scheduled("cosine_lr", lambda o: _lr.CosineAnnealingLR(o, 4))
scheduled("lambda_lr", lambda o: _lr.LambdaLR(o, lambda epoch: 1 / (epoch + 1)))
scheduled("multi_step_lr", lambda o: _lr.MultiStepLR(o, [2, 4]))
scheduled("one_cycle_lr", lambda o: _lr.OneCycleLR(o, 0.5, total_steps=20))
scheduled(
    "sequential_lr",
    lambda o: _lr.SequentialLR(o, [_lr.ConstantLR(o, 0.5, 2), _lr.ExponentialLR(o, 0.9)], [2]),
)


def _metrics(state):
    for metric in (1.0, 0.9, 0.9, 0.9, 0.9):
        yield (metric,)


@scenario(_metrics)
def plateau():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    scheduler = _lr.ReduceLROnPlateau(optimizer, patience=1)

    def step(metric):
        scheduler.step(metric)
        return optimizer.param_groups[0]["lr"]

    return step, (made, optimizer)


# Whole training steps.


def _batches(state):
    for step in range(5):
        yield (t(2, 3, start=step), t(2, 2, start=-step))


def training(name, make, *, clip=None):
    """Declare a whole training step in one function."""

    def program():
        made = model()
        optimizer = make(made.parameters())

        def step(x, y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(made(x), y)
            loss.backward()
            if clip is not None:
                clip(made.parameters())
            optimizer.step()
            return loss.detach()

        return step, (made, optimizer)

    program.__name__ = program.__qualname__ = name
    scenario(_batches)(program)


training("training_step_sgd", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
training("training_step_adam", lambda p: torch.optim.Adam(p, lr=0.1))
training("training_step_adamw_foreach", lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True))
training(
    "training_step_clipped_norm",
    lambda p: torch.optim.SGD(p, lr=0.1),
    clip=lambda p: nn.utils.clip_grad_norm_(p, 0.5),
)
training(
    "training_step_clipped_value",
    lambda p: torch.optim.SGD(p, lr=0.1),
    clip=lambda p: nn.utils.clip_grad_value_(p, 0.1),
)


@scenario(_batches)
def backward_before_zero_grad():
    made = model()
    optimizer = torch.optim.Adam(made.parameters(), lr=0.1)

    def step(x, y):
        loss = nn.functional.mse_loss(made(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, (made, optimizer)


@scenario(_batches)
def gradient_accumulation():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    count = [0]

    def step(x, y):
        loss = nn.functional.mse_loss(made(x), y) / 2
        loss.backward()
        count[0] += 1
        if count[0] % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step, (made, optimizer, count)


@scenario(_batches)
def gradients_by_autograd_grad():
    made = model()

    def step(x, y):
        loss = nn.functional.mse_loss(made(x), y)
        parameters = list(made.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients):
                parameter.sub_(gradient, alpha=0.1)
        return loss.detach()

    return step, made


@scenario(_batches)
def gradient_scaler():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(made(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), scaler.get_scale()

    return step, (made, optimizer)


@scenario(_batches)
def averaged_model():
    made = model()
    averaged = torch.optim.swa_utils.AveragedModel(
        made, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )

    def step(x, y):
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(x.mean())
        averaged.update_parameters(made)
        return averaged(x) - y

    return step, (made, averaged)


@scenario(_batches)
def averaged_by_hand():
    made, shadow = model(), model()

    @torch.no_grad()
    def step(x, y):
        for own, other in zip(shadow.parameters(), made.parameters(), strict=True):
            other.add_(x.mean())
            own.lerp_(other, 0.1)
        return shadow(x) - y

    return step, (made, shadow)


@scenario(_batches)
def optimizer_made_inside():
    made = model()

    def step(x, y):
        optimizer = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.5)
        optimizer.zero_grad()
        nn.functional.mse_loss(made(x), y).backward()
        optimizer.step()
        return optimizer.param_groups[0]["lr"]

    return step, made


@scenario(_five)
def step_hooks():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    seen = []
    optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append("before"))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append("after"))

    def step():
        optimizer.step()

    return step, (made, optimizer, seen)


@case(lambda: [(nn.Parameter(t(3)), 0.1), (nn.Parameter(t(3)), 0.2), (nn.Parameter(t(2)), 0.2)])
def clipped_norm(parameter, limit):
    parameter.grad = parameter.detach() * 2
    norm = nn.utils.clip_grad_norm_([parameter], limit)
    return norm, parameter.grad


@case(lambda: [(nn.Parameter(t(3)),), (nn.Parameter(t(4)),)])
def parameters_as_vector(parameter):
    vector = nn.utils.parameters_to_vector([parameter, parameter])
    nn.utils.vector_to_parameters(vector * 2, [parameter, parameter])
    return vector
