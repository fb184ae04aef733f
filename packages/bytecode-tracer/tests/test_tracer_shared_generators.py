"""Generators that several threads draw from, and where graphs fail: no number comes twice."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from plait_bytecode_tracer import compile
from plait_bytecode_tracer.guards.native import wait_for_native_guards

THREADS, CALLS = 4, 100


def run_graph(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    return module.forward


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def noisy(x: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    first = torch.rand(3, generator=generator, dtype=torch.float64)
    y = x * 2
    second = torch.rand(3, generator=generator, dtype=torch.float64)
    return torch.cat([first, second + y.sum() * 0])


def drawn_by_threads(functions: list[Callable[[], torch.Tensor]]) -> list[float]:
    """What threads get that call functions, many times each."""
    found: list[float] = []

    def many(function: Callable[[], torch.Tensor]) -> None:
        mine: list[float] = []
        for _ in range(CALLS):
            mine += function().tolist()
        found.extend(mine)

    threads = [
        threading.Thread(target=many, args=(functions[n % len(functions)],)) for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("is_default", [False, True])
def test_threads_that_share_a_generator_get_different_numbers(is_default: bool) -> None:
    compiled = compile(noisy, run_graph, fullgraph=True)
    generator = torch.default_generator if is_default else torch.Generator().manual_seed(3)
    given = None if is_default else generator
    compiled(torch.ones(2), given)
    wait_for_native_guards()
    before = torch.Generator().set_state(generator.get_state())
    calls = [lambda: compiled(torch.ones(2), given), lambda: noisy(torch.ones(2), given)]
    found = drawn_by_threads(calls)
    expected = [noisy(torch.ones(2), before) for _ in range(THREADS * CALLS)]
    assert sorted(found) == sorted(torch.cat(expected).tolist())
    assert torch.equal(before.get_state(), generator.get_state())


def test_threads_that_share_a_generator_of_python_get_different_numbers() -> None:
    def function(x: torch.Tensor) -> Any:
        first = random.random()
        y = x * first
        return torch.stack([y, x * random.uniform(0, 1)])

    compiled = compile(function, run_graph, fullgraph=True)
    x = torch.ones((), dtype=torch.float64)
    compiled(x)
    wait_for_native_guards()
    random.seed(5)
    found = drawn_by_threads([lambda: compiled(x), lambda: function(x)])
    assert len(set(found)) == len(found)
    made = []
    for called in (function, compiled):
        random.seed(5)
        made.append([called(x).tolist() for _ in range(3)])
    assert made[0] == made[1]


def test_generators_of_python_go_back_to_where_the_program_had_come() -> None:
    def function(x: torch.Tensor, total: torch.Tensor, place: torch.Tensor, log: list[Any]) -> Any:
        total.add_(random.random())
        log.append(random.uniform(1, 2))
        y = x[place]
        return y + random.random()

    compiled = compile(function, run_graph, fullgraph=True)
    found = []
    for called in (function, compiled):
        random.seed(3)
        made: list[Any] = []
        total = torch.zeros(1)
        for place in (0, 9, 1, 9, 2):
            try:
                made += called(torch.arange(3.0), total, torch.tensor([place]), made).tolist()
            except IndexError:
                made.append(random.random())
        found.append([*made, total.tolist(), random.getstate()])
    assert found[0] == found[1]


@pytest.mark.parametrize("is_of_python", [False, True])
def test_a_graph_that_fails_takes_nothing_back_that_others_have_drawn(is_of_python: bool) -> None:
    generator = torch.Generator().manual_seed(5)

    def draw() -> float:
        if is_of_python:
            return random.random()
        return float(torch.rand((), generator=generator, dtype=torch.float64))

    def function(x: torch.Tensor, place: torch.Tensor) -> Any:
        if is_of_python:
            x = x + random.random()
        else:
            x = x + torch.rand((), generator=generator, dtype=torch.float64)
        return x[place]

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            try:
                return module.forward(*given)
            except IndexError:
                others = threading.Thread(target=lambda: found.append(draw()))
                others.start()
                others.join()
                raise

        return run

    compiled = compile(function, backend, fullgraph=True)
    random.seed(5)
    found: list[float] = []
    for place in (0, 9, 1, 9, 2):
        if place < 9:
            found += compiled(torch.zeros(3).double(), torch.tensor([place])).tolist()
        else:
            with pytest.raises(IndexError):
                compiled(torch.zeros(3).double(), torch.tensor([place]))
        found.append(draw())
    assert len(set(found)) == len(found) == 10


def test_a_generator_goes_back_to_where_the_program_had_come() -> None:
    def function(x: torch.Tensor, total: torch.Tensor, place: torch.Tensor, generator: Any) -> Any:
        noise = torch.rand(2, generator=generator)
        total.add_(noise.mul_(2).sum())
        seen.append(noise)
        return x[place], torch.rand(1, generator=generator)

    seen: list[torch.Tensor] = []
    compiled = compile(function, run_graph, fullgraph=True)
    found = []
    for called in (function, compiled):
        generator, total, made = torch.Generator().manual_seed(1), torch.zeros(1), []
        seen.clear()
        for place in (0, 9, 1, 9, 2):
            try:
                made += called(torch.arange(3.0), total, torch.tensor([place]), generator)
            except IndexError:
                made.append(torch.rand(1, generator=generator))
        found.append([*made, *seen, total, generator.get_state()])
    for expected, given in zip(*found, strict=True):
        assert torch.equal(expected, given)


def test_generators_that_are_one_are_told_from_those_that_are_not() -> None:
    def function(one: torch.Generator, other: torch.Generator) -> Any:
        first = torch.rand(1, generator=one)
        return first, torch.rand(1, generator=other), torch.rand(1, generator=one)

    compiled = compile(function, run_graph, fullgraph=True)
    for is_same in (False, True, False, True):
        made = []
        for called in (function, compiled):
            one = torch.Generator().manual_seed(1)
            made.append(called(one, one if is_same else torch.Generator().manual_seed(2)))
        for expected, given in zip(*made, strict=True):
            assert torch.equal(expected, given)
