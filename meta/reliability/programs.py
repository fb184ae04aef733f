"""Programs of many kinds, each another one for each number, whose results eager knows.

Graphs of their own for each number mean that compilers run, entries are stored and others loaded
all the while; fresh inputs each time mean that no result is right by chance.
"""

from __future__ import annotations

import torch
from torch import nn

import plait

ROWS, WIDTH = 6, 32
WARM = {"warm_start": True}


def pointwise(number):
    def program(x):
        return torch.tanh(x * (number + 0.5)) + x.sigmoid() / (number + 1)

    return program


def normalized(number):
    def program(x):
        centered = x - x.mean(-1, keepdim=True) * (number + 1)
        return torch.softmax(centered, -1), centered.square().sum(0)

    return program


def layers(number):
    with torch.random.fork_rng():
        torch.manual_seed(number)
        return nn.Sequential(
            *(nn.Linear(WIDTH, WIDTH + number % 7), nn.GELU(), nn.LayerNorm(WIDTH + number % 7)),
            nn.Linear(WIDTH + number % 7, 4),
        ).requires_grad_(False)


def views(number):
    def program(x):
        turned = (x.t() + number).reshape(WIDTH // 2, 2 * ROWS).cumsum(1)
        return torch.cat([turned[1:], turned.flip(0)]).amax(0), turned

    return program


KINDS = (pointwise, normalized, layers, views)


def flat(value):
    return [value] if isinstance(value, torch.Tensor) else list(value)


def check(number, generator, **options):
    """Compile the program of a number and compare it with eager, which it must agree with twice.

    Returns the notices of its report.
    """
    program = KINDS[number % len(KINDS)](number)
    compiled = plait.compile(program, fullgraph=True, options={**WARM, **options})
    for _ in range(2):
        x = torch.randn(ROWS, WIDTH, generator=generator)
        expected, found = flat(program(x)), flat(compiled(x))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(
                one, other, rtol=1e-4, atol=1e-4, msg=lambda m: f"{number}: {m}"
            )
    return plait.report(compiled).notices
