"""Threads that compile and call at once: functions of their own and functions that all share.

In each round all begin together; each thread does what its random numbers say, some of it with
functions that other threads call, compile anew for other sizes or train at that moment.
"""

from __future__ import annotations

import copy
import random
import threading
import traceback

import torch
from torch import nn

import plait
from reliability import programs

STEPS = 4
DEADLOCK_SECONDS = 300.0


def shared(number):
    """What all threads of a round call: a function of any sizes, a module, one that is trained."""
    scale = number + 0.25

    def sizes(x):
        return torch.tanh(x * scale).sum(-1) + x.mean()

    with torch.random.fork_rng():
        torch.manual_seed(number)
        model = nn.Sequential(nn.Linear(8, 8 + number % 5), nn.Tanh(), nn.Linear(8 + number % 5, 2))
    return sizes, model


class Round:
    """The functions of a round, plain and compiled."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sizes, self.model = shared(number)
        self.fast_sizes = plait.compile(self.sizes)
        self.fast_model = plait.compile(self.model)

    def call_with_some_size(self, choose, generator):
        x = torch.randn(choose.randrange(1, 9), 5, generator=generator)
        torch.testing.assert_close(self.fast_sizes(x), self.sizes(x), rtol=1e-4, atol=1e-5)

    def gradients(self, choose, generator):
        x = torch.randn(3, 8, generator=generator)
        weights = list(self.model.parameters())
        found = torch.autograd.grad(self.fast_model(x).square().sum(), weights)
        expected = torch.autograd.grad(self.model(x).square().sum(), weights)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)

    def without_gradients(self, choose, generator):
        x = torch.randn(3, 8, generator=generator)
        with torch.no_grad():
            found, expected = self.fast_model(x), self.model(x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert not found.requires_grad

    def own_program(self, choose, generator):
        programs.check(4 * self.number + choose.randrange(6), generator)

    def own_training(self, choose, generator):
        plain = copy.deepcopy(self.model)
        other = copy.deepcopy(plain)
        x = torch.randn(4, 8, generator=generator)
        for model, call in ((plain, plain), (other, plait.compile(other))):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(3):
                optimizer.zero_grad()
                call(x).square().mean().backward()
                optimizer.step()
        for one, two in zip(other.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)


ACTIONS = (
    *(Round.call_with_some_size, Round.gradients, Round.without_gradients),
    *(Round.own_program, Round.own_training),
)


def run_threads(rounds: int, threads: int, seed: int) -> list[str]:
    """What went wrong in so many rounds of so many threads."""
    wrong: list[str] = []
    for number in range(rounds):
        made, barrier = Round(seed % 1000 + number), threading.Barrier(threads)

        def work(place, made=made, barrier=barrier, number=number):
            choose = random.Random(f"{seed} {number} {place}")
            generator = torch.Generator().manual_seed(choose.randrange(1 << 30))
            action = None
            try:
                barrier.wait(60)
                for _ in range(STEPS):
                    action = choose.choice(ACTIONS)
                    action(made, choose, generator)
            except BaseException as error:
                name = getattr(action, "__name__", "the start")
                told = "".join(traceback.format_exception(error))
                wrong.append(f"round {number}, {name}: {told[-4000:]}")

        begun = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(threads)]
        for each in begun:
            each.start()
        for each in begun:
            each.join(DEADLOCK_SECONDS)
        stuck = sum(each.is_alive() for each in begun)
        if stuck:
            return [*wrong, f"round {number}: {stuck} threads are stuck"]
        plait.reset()
    return wrong
