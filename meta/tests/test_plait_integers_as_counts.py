"""Integers that are read or passed as counts of functions, and their bits, in one program."""

from __future__ import annotations

import pytest
import torch
from counted import call_with, compare, read, same
from torch.nn import functional

import plait

PROGRAMS = {
    "classes": lambda x, n: functional.one_hot(torch.arange(3), n + 3) * 2,
    "too few classes": lambda x, n: functional.one_hot(torch.arange(5), n),
    "spaced": lambda x, n: torch.linspace(-1.0, 3.0, n) * 2,
    "spaced to": lambda x, n: torch.linspace(0.0, n, n + 1, dtype=torch.float64),
    "powers": lambda x, n: torch.logspace(0.0, 1.0, n, base=2.0),
    "nearest": lambda x, n: functional.interpolate(x[None, None], size=n + 1),
    "bilinear": lambda x, n: functional.interpolate(
        x.view(1, 1, 4, 5), size=(n + 1, 7), mode="bilinear"
    ),
    "no image": lambda x, n: functional.interpolate(x[None, None], size=n),
    "doubled": lambda x, n: (x * (n << 1), torch.zeros(n << 1) + 1),
    "halved": lambda x, n: (x * (n >> 1), torch.zeros(n >> 1) + 1),
    "some bits": lambda x, n: (x * (n & 3), x[: (n & 6) + 2] * 2, n & -4),
    "more bits": lambda x, n: (x * (n | 5), torch.zeros(n | 1) + 1),
    "other bits": lambda x, n: (x * (n ^ 6), n ^ -1),
    "no bits": lambda x, n: (x * ~n, x[~n]),
    "mixed": lambda x, n: x * (((n * 31) ^ 7) & 1023),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(3)
def test_integers_that_are_read_stay_open(name):
    function = PROGRAMS[name]

    def program(x):
        return function(x, read(x))

    compiled = plait.compile(program, fullgraph=True)
    compare(compiled, program)
    assert len(compiled.entries) == 1
    assert len(plait.report(compiled).graphs) <= 6


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(3)
def test_integers_that_are_passed_stay_open(name):
    program = PROGRAMS[name]
    compiled = plait.compile(program)
    for n in (6, 5, 9, 17, 8, 11, 14):
        same(compiled(call_with(3), n), program(call_with(3), n))
    assert len(compiled.entries) == 2
    assert len(plait.report(compiled).graphs) <= 3
    assert not compiled.breaks


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, n: x * (1 << n), "1 << sum_1.item(), which depends on data"),
        (lambda x, n: x * (n & n), "sum_1.item() & sum_1.item(), which depends on data"),
    ],
)
def test_what_has_no_arithmetic_breaks_and_says_why(function, reason):
    def program(x):
        return function(x, read(x))

    compiled = plait.compile(program)
    compare(compiled, program)
    assert compiled.breaks[0].reason == f"the value of {reason}"


def test_bits_of_large_integers_are_exact():
    def program(x, n):
        return x * (n >> 3), x * ((n ^ 12345) & 0xFFFF), (n << 40) % 1000 * x

    compiled = plait.compile(program, fullgraph=True)
    for n in (3, 4, 2**31 - 1, 2**40 + 7, 2**62 - 1, -(2**40) - 5, -1):
        same(compiled(call_with(3), n), program(call_with(3), n))
