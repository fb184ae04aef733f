"""Set operators of dict views: their results have eager's elements, in eager's order."""

from __future__ import annotations

import random

import pytest
import torch

from plait_bytecode_tracer import compile


def combined(first, second, some, listed, x):
    results = []
    for view in (first.keys(), first.items()):
        for other in (second.keys(), second.items(), some, frozenset(some), listed):
            made = (view - other, view | other, view & other, view ^ other)
            results += [(list(each), type(each).__name__) for each in made]
    for other in (some, frozenset(some), second.keys(), listed):
        made = (other - first.keys(), other | first.keys(), other & first.keys())
        results += [(list(each), type(each).__name__) for each in made]
    return results, x + 1


@pytest.mark.parametrize("seed", range(12))
def test_results_are_in_the_order_that_python_gives_them(seed):
    rng = random.Random(seed)
    names = [f"k{rng.randrange(60)}" for _ in range(60)]
    first = {n: rng.randrange(2) for n in rng.sample(names, rng.randrange(30))}
    second = {n: rng.randrange(2) for n in rng.sample(names, rng.randrange(30))}
    listed = rng.sample(names, rng.randrange(20))

    def program(x):
        return combined(dict(first), dict(second), set(listed), list(listed), x)

    x = torch.ones(2)
    traced = compile(program, lambda graph, inputs: graph.forward, fullgraph=True)
    assert traced(x)[0] == program(x)[0]


def test_what_views_refuse_is_refused():
    def program(x):
        try:
            return x, {"a": 1}.values() - {1}
        except TypeError as error:
            return x, str(error)

    traced = compile(program, lambda graph, inputs: graph.forward)
    assert traced(torch.ones(1))[1] == program(torch.ones(1))[1]
