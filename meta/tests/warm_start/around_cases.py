"""Programs that do something beside their graph, in two worlds.

As in `gradient_cases.py`: each case gives what makes a function and what is done with it.
"""

import functools
import logging
import os
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


class Count(logging.Handler):
    """How much has been logged."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def emit(self, record):
        self.count += 1


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
            counted = Count()
            logger.addHandler(counted)
            logger.propagate = False
            try:
                before()
                found = [f(X), f(X)]
            finally:
                logger.removeHandler(counted)
                logger.propagate = True
            hits = cached.cache_info().hits
            return [*found, torch.tensor([counted.count, hits, cached.cache_info().currsize])]

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
