"""Generators that several threads draw from, and where graphs fail: no number comes twice."""

from __future__ import annotations

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


def run_elsewhere(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A backend that does not tell how far its graph came."""
    return lambda *given: module.forward(*given)


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


def drawn_by_threads(
    functions: list[Callable[[], torch.Tensor]], calls: int = CALLS
) -> list[float]:
    """What threads get that call functions, many times each."""
    found: list[float] = []

    def many(function: Callable[[], torch.Tensor]) -> None:
        mine: list[float] = []
        for _ in range(calls):
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


@pytest.mark.parametrize("backend", [run_graph, run_elsewhere])
def test_graphs_that_fail_give_no_number_twice(backend: Callable[..., Any]) -> None:
    def function(x: torch.Tensor, place: torch.Tensor, generator: torch.Generator) -> Any:
        first = torch.rand(1, generator=generator, dtype=torch.float64)
        y = x[place]
        return torch.cat([first, torch.rand(1, generator=generator, dtype=torch.float64) + y * 0])

    compiled = compile(function, backend)
    generator = torch.Generator().manual_seed(5)
    x, good, bad = torch.zeros(3).double(), torch.tensor([1]), torch.tensor([7])

    def call() -> torch.Tensor:
        with pytest.raises(IndexError):
            compiled(x, bad, generator)
        found: torch.Tensor = compiled(x, good, generator)
        return found

    def draw() -> torch.Tensor:
        return torch.rand(2, generator=generator, dtype=torch.float64)

    call()
    found = drawn_by_threads([draw, draw, call, draw], 20)
    assert len(set(found)) == len(found)


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
