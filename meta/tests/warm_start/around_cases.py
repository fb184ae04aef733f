"""Programs that do something beside their graph, in two worlds.

As in `gradient_cases.py`: each case gives what makes a function and what is done with it.
"""

import functools
import logging
import logging.handlers
import os
import types
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

PHASE = int(os.environ.get("PHASE", "0"))
LEVEL = 2
X = torch.linspace(-2, 2, 24).reshape(4, 6)
logger = logging.getLogger("cases")


class Steps(NamedTuple):
    """What makes a function and what is done with it, which gives tensors."""

    build: Any


@functools.lru_cache
def noted(log, text, level=logging.WARNING):
    log.warning(text)


@functools.lru_cache
def scaled(factor):
    return factor * LEVEL


@functools.lru_cache
def scaled_again(factor):
    return scaled(factor) + 1


def logged(function, cached, before=lambda: None):
    """The function's results, and how much it logs; with what is done first."""

    def build():
        def steps(f):
            cached.cache_clear()
            kept = logging.handlers.BufferingHandler(1000)
            logger.addHandler(kept)
            logger.propagate = False
            try:
                before()
                found = [f(X), f(X)]
            finally:
                logger.removeHandler(kept)
                logger.propagate = True
            hits = cached.cache_info().hits
            return [*found, torch.tensor([len(kept.buffer), hits, cached.cache_info().currsize])]

        return function, steps

    return Steps(build)


def case_warning_once_stays():
    def f(x):
        noted(logger, "this is odd", level=logging.ERROR)
        return x.sin()

    return logged(f, noted)


def case_warning_once_that_came_before_stays():
    def f(x):
        noted(logger, "this is odd")
        return x.sin() * 2

    return logged(f, noted, lambda: noted(logger, "this is odd") if PHASE else None)


def case_cache_that_other_circumstances_have_filled():
    def f(x):
        return x.sin() * scaled(3)

    def before():
        if PHASE:
            globals()["LEVEL"] = 5
            scaled(3)
            globals()["LEVEL"] = 2

    return logged(f, scaled, before)


def case_cache_that_is_filled_before_stays():
    return logged(lambda x: x.cos() * scaled(3), scaled, lambda: scaled(3))


def case_cache_that_is_filled_before_with_another_result():
    def before():
        globals()["LEVEL"] = 2 + 3 * PHASE
        scaled(3)
        globals()["LEVEL"] = 2

    return logged(lambda x: x.cos() * scaled(3) + 1, scaled, before)


def case_cache_in_a_cache_that_is_filled():
    def f(x):
        return x.sin() * scaled_again(3)

    def before():
        scaled.cache_clear()
        if PHASE:
            globals()["LEVEL"] = 5
            scaled(3)
            globals()["LEVEL"] = 2

    return logged(f, scaled_again, before)


def case_cached_function_with_other_code():
    space = {"__name__": __name__}
    exec(f"def other(factor): return factor * {PHASE + 2}", space)
    globals()["other_cached"] = functools.lru_cache(space["other"])
    return logged(lambda x: x.sin() * other_cached(3), other_cached)  # noqa: F821 - made above


def case_cache_with_room_for_one_stays():
    def f(x):
        return x.sin() * roomy(3)

    return logged(f, roomy)


@functools.lru_cache(maxsize=1)
def roomy(factor):
    return factor + 0.5


def case_size_of_a_cache():
    globals()["sized"] = functools.lru_cache(maxsize=1 + PHASE)(_sized)
    return logged(lambda x: x.sin() * sized(2), sized)  # noqa: F821 - made above


def _sized(factor):
    return factor + 0.25


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return x * self.scale, self.scale


def case_attribute_that_is_returned_stays():
    def build():
        holder = Holder()

        def steps(f):
            first, scale = f(X)
            with torch.no_grad():
                scale.mul_(2)
            second, scale = f(X)
            assert scale is holder.scale
            return [first, second, scale]

        return holder, steps

    return Steps(build)


def case_recurrent_training_stays():
    def build():
        net, head = nn.LSTM(6, 8, num_layers=2, batch_first=True), nn.Linear(8, 3)

        def f(x):
            states, _ = net(x)
            return F.cross_entropy(head(states[:, -1]), torch.arange(4) % 3)

        def steps(f):
            x = torch.linspace(-1, 1, 4 * 5 * 6).reshape(4, 5, 6).cos().requires_grad_()
            losses = [f(x), f(x)]
            for loss in losses:
                loss.backward()
            grads = [each.grad for each in (x, *net.parameters(), *head.parameters())]
            return [*losses, *grads]

        return f, steps

    return Steps(build)


def model():
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def trained(name, optimizer_of, before=lambda net, optimizer: None):
    """Whole training steps, and what they leave; `name` tells their code from that of others."""

    def build():
        net = model()
        optimizer = optimizer_of(net)
        before(net, optimizer)
        goal = torch.arange(4) % 3

        def step(x):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), goal)
            loss.backward()
            optimizer.step()
            return loss.detach()

        code = step.__code__.replace(co_name=name)
        made = types.FunctionType(code, globals(), name, None, step.__closure__)

        def steps(f):
            losses = [f(X) for _ in range(4)]
            kept = [each for state in optimizer.state.values() for each in state.values()]
            tensors = [each for each in kept if isinstance(each, torch.Tensor)]
            grads = [each.grad for each in net.parameters() if each.grad is not None]
            return [*losses, *net.parameters(), *grads, *tensors]

        return made, steps

    return Steps(build)


def triple(leaf):
    leaf.grad.mul_(3)


def case_step_of_sgd_stays():
    return trained("sgd", lambda net: torch.optim.SGD(net.parameters(), lr=0.1))


def case_step_of_sgd_with_momentum_stays():
    return trained("momentum", lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))


def case_rate_of_learning():
    return trained("rate", lambda net: torch.optim.SGD(net.parameters(), lr=0.1 + PHASE))


def case_parameter_that_is_frozen():
    def freeze(net, optimizer):
        net[0].weight.requires_grad_(not PHASE)

    return trained(
        "frozen", lambda net: torch.optim.SGD(net.parameters(), lr=0.1, foreach=False), freeze
    )


def case_hook_of_a_parameter():
    def hooked(net, optimizer):
        if PHASE:
            net[0].weight.register_hook(lambda grad: grad * 2)

    return trained("hook", lambda net: torch.optim.SGD(net.parameters(), lr=0.2), hooked)


def case_hook_after_accumulation():
    def hooked(net, optimizer):
        if PHASE:
            net[3].bias.register_post_accumulate_grad_hook(triple)

    return trained("after", lambda net: torch.optim.SGD(net.parameters(), lr=0.3), hooked)


def case_hook_of_an_optimizer():
    def hooked(net, optimizer):
        if PHASE:
            optimizer.register_step_pre_hook(lambda *given: triple(net[0].weight))

    return trained("optimizer", lambda net: torch.optim.SGD(net.parameters(), lr=0.4), hooked)


def case_parameter_that_has_a_history():
    def follow(net, optimizer):
        if PHASE:
            made = net[0].weight.detach().requires_grad_()
            made.register_hook(lambda grad: grad * 2)
            optimizer.param_groups[0]["params"][0] = net[0]._parameters["weight"] = made

    return trained("history", lambda net: torch.optim.SGD(net.parameters(), lr=0.5), follow)


def case_gradients_that_add_up_stay():
    def build():
        net = model()

        def step(x):
            net(x).square().mean().backward()
            return x.sum()

        def steps(f):
            sums = [f(X) for _ in range(3)]
            net.zero_grad()
            return [*sums, f(X), *(each.grad for each in net.parameters())]

        return step, steps

    return Steps(build)


class Counted(nn.Module):
    """Keeps what it has seen."""

    def __init__(self):
        super().__init__()
        self.last = None
        self.seen = {"all": torch.zeros(())}

    def forward(self, x):
        self.last = x.mean()
        self.seen["all"] = self.seen["all"] + self.last
        return x * 2


def case_what_a_module_keeps_stays():
    def build():
        counted = Counted()

        def steps(f):
            found = [f(X), f(X + 1), f(X + 2)]
            return [*found, counted.last, counted.seen["all"]]

        return counted, steps

    return Steps(build)


def case_gradients_are_off_inside_stays():
    def build():
        net = model()

        def step(x):
            with torch.no_grad():
                scale = net(x).mean()
            return net(x).sum() * scale

        def steps(f):
            loss = f(X)
            loss.backward()
            return [loss, *(each.grad for each in net.parameters()), f(X).detach()]

        return step, steps

    return Steps(build)


def case_mode_that_stays_switched():
    def build():
        def step(x):
            torch.set_grad_enabled(False)
            return x * 3

        def steps(f):
            x = X.clone().requires_grad_()
            first, was = f(x), torch.is_grad_enabled()
            torch.set_grad_enabled(True)
            second = f(x)
            torch.set_grad_enabled(True)
            return [first.detach(), second.detach(), torch.tensor([was, second.requires_grad])]

        return step, steps

    return Steps(build)


def case_autocast_inside_stays():
    def build():
        net = nn.Linear(6, 4)
        with torch.no_grad():
            for each in net.parameters():
                each.round_()

        def step(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return net(x)  # small integers: no rounding

        def steps(f):
            found = f(X.round())
            found.sum().backward()
            return [found, *(each.grad for each in net.parameters())]

        return step, steps

    return Steps(build)


def case_gradients_of_gradients_across_modes_stay():
    def build():
        net = model()

        def step(x):
            with torch.no_grad():
                scale = net(x).mean()
            return net(x).square().sum() * scale

        def steps(f):
            x = X.clone().requires_grad_()
            (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
            return [slope, *torch.autograd.grad(slope.square().sum(), [x, *net.parameters()])]

        return step, steps

    return Steps(build)


def adam(net, **settings):
    return torch.optim.AdamW(net.parameters(), **{"lr": 0.1, **settings})


def case_step_of_adam_stays():
    return trained("adam", adam)


def case_step_of_adam_one_by_one_stays():
    return trained("single", lambda net: adam(net, foreach=False))


def case_averages_of_adam():
    return trained("averages", lambda net: adam(net, betas=(0.9 - PHASE / 4, 0.99)))


def case_largest_averages_of_adam():
    return trained("largest", lambda net: adam(net, amsgrad=bool(PHASE)))


def case_steps_that_came_before_stay():
    """Their number is read from tensors, and given to the program."""

    def begun(net, optimizer):
        for parameter in net.parameters():
            optimizer.state[parameter] = {
                "step": torch.tensor(5.0 + 300 * PHASE),
                "exp_avg": torch.full_like(parameter, 0.1),
                "exp_avg_sq": torch.full_like(parameter, 0.2),
            }

    return trained("begun", adam, begun)


def case_steps_beyond_what_is_exact_stay():
    def begun(net, optimizer):
        for parameter in net.parameters():
            optimizer.state[parameter] = {
                "step": torch.tensor(5.0 + (PHASE << 24)),
                "exp_avg": torch.full_like(parameter, 0.1),
                "exp_avg_sq": torch.full_like(parameter, 0.2),
            }

    return trained("exact", adam, begun)


def case_steps_below_nothing():
    """Nothing is divided by zero where the other world has counted from elsewhere."""

    def begun(net, optimizer):
        for parameter in net.parameters():
            optimizer.state[parameter] = {
                "step": torch.tensor(5.0 - 6 * PHASE),
                "exp_avg": torch.full_like(parameter, 0.1),
                "exp_avg_sq": torch.full_like(parameter, 0.2),
            }

    def build():
        net = model()
        optimizer = adam(net)
        begun(net, optimizer)

        def below(x):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def steps(f):
            try:
                return [f(X), *net.parameters()]
            except ZeroDivisionError:
                return [torch.zeros(1)]

        return below, steps

    return Steps(build)


def case_rates_of_a_schedule():
    def build():
        net = model()
        optimizer = adam(net)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)

        def scheduled(x):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def steps(f):
            losses = []
            for _ in range(6):
                losses.append(f(X))
                schedule.step()
            return [*losses, *net.parameters()]

        return scheduled, steps

    return Steps(build)


def case_number_that_is_given_stays():
    def build():
        def scaled_by(x, factor):
            return x * factor + factor / 3

        def steps(f):
            factors = (0.5, 1.5 + PHASE, -2.5, float("inf"), 1e300)
            return [f(X, factor).nan_to_num() for factor in factors]

        return scaled_by, steps

    return Steps(build)


def case_number_that_decides():
    def build():
        def decided(x, factor):
            return x * factor if factor > 1 + 2 * PHASE else x - factor

        def steps(f):
            factors = (0.5, 2.5, 1.5, 4.5, float("nan"))
            return [f(X, factor).nan_to_num() for factor in factors]

        return decided, steps

    return Steps(build)


def case_number_that_gradients_flow_by():
    def build():
        net = model()

        def scaled_loss(x, factor):
            return net(x).square().mean() * factor

        def steps(f):
            for factor in (0.5, 1.5, 2.5):
                f(X, factor).backward()
            return gradients(net)

        return scaled_loss, steps

    return Steps(build)


def gradients(net):
    return [each.grad for each in net.parameters()]


def on_sizes(function, *sizes):
    """What a function gives for tensors of several first sizes."""

    def build():
        def steps(f):
            shapes = [(size, 6) for size in sizes]
            return [f(torch.linspace(-1, 2, a * b).reshape(a, b)) for a, b in shapes]

        return function, steps

    return Steps(build)


def case_sizes_stay():
    def sized(x):
        return (x.sin() * x.shape[0]).sum(0) + x.mean(0)

    return on_sizes(sized, 4, 5, 9, 6 + PHASE)


def case_sizes_that_decide():
    def decided_by_size(x):
        return x.sin() if x.shape[0] > 6 * (PHASE + 1) else x.cos() * x.shape[0]

    return on_sizes(decided_by_size, 4, 5, 9, 12, 13, 1)


def case_sizes_of_other_calls():
    def sized_else(x):
        return x.softmax(0) * 2

    return on_sizes(sized_else, *((4, 5, 7, 1, 2, 0) if PHASE else (4, 5, 7, 8)))


def case_sizes_that_are_equal():
    def squared(x):
        return x @ x.T if x.shape[0] == 6 else x * 2

    return on_sizes(squared, 5, 7, 8, *((6, 9) if PHASE else (9, 10)))


def case_layouts_of_open_sizes():
    def laid(x):
        return x.sin().sum(0)

    def build():
        def steps(f):
            found = []
            for size in (4, 5, 9):
                x = torch.linspace(-1, 2, size * 6)
                found.append(f(x.reshape(6, size).T if PHASE else x.reshape(size, 6)))
            return found

        return laid, steps

    return Steps(build)


def case_open_sizes_of_two_tensors_stay():
    def joined(x, y):
        return torch.cat([x, y * 2]).sin()

    def build():
        def steps(f):
            pairs = [(4, 4), (5, 6), (7, 7), (6, 9 + PHASE)]
            return [f(torch.ones(a, 3) / a, torch.ones(b, 3) / b) for a, b in pairs]

        return joined, steps

    return Steps(build)


def case_open_sizes_and_views():
    def viewed(x):
        return x.view(-1), x[1:] * 2

    def build():
        def steps(f):
            found = []
            for size in (4, 5, 9):
                x = torch.ones(size, 6)
                flat, rest = f(x)
                flat.mul_(2 + PHASE)
                found += [flat, rest, x]
            return found

        return viewed, steps

    return Steps(build)


def case_open_sizes_with_gradients():
    def build():
        net = model()

        def loss_of(x):
            return net(x).square().mean()

        def steps(f):
            for size in (4, 5, 9):
                f(torch.linspace(-1, 2, size * 6).reshape(size, 6)).backward()
            return gradients(net)

        return loss_of, steps

    return Steps(build)


def case_change_of_a_tensor_with_an_open_size_stays():
    def added(x):
        x.add_(x.shape[0])
        return x.sum(0)

    def build():
        def steps(f):
            found = []
            for size in (4, 5, 9 + PHASE):
                x = torch.ones(size, 6)
                found += [f(x), x]
            return found

        return added, steps

    return Steps(build)
