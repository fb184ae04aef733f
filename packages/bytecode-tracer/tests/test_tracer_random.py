"""Python's random generators: the same numbers, and the same state afterwards, as in eager."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from plait_bytecode_tracer import compile, compiled_function_of

CALLS = 40


def run_graph(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    return module.forward


def plain(value: Any) -> Any:
    """Tensors as lists, inside of lists and tuples."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def as_eager(function: Callable[..., Any], **options: Any) -> Any:
    """Call a function often, compiled and not, over one stream; returns the compiled one."""
    compiled = compile(function, run_graph, **options)
    x = torch.ones(3)
    results = []
    for called in (function, compiled):
        random.seed(5)
        results.append([called(x) for _ in range(CALLS)] + [random.getstate()])
    eager, traced = map(plain, results)
    assert eager == traced
    return compiled_function_of(compiled)


def test_numbers_are_inputs_of_one_graph() -> None:
    def function(x: torch.Tensor) -> Any:
        noise = random.uniform(-1, 1) + random.gauss(0, 2)
        return x * noise + random.randint(0, 100), noise

    found = as_eager(function, fullgraph=True)
    assert len(found.entries) == 1


def test_layers_that_are_skipped_at_random_have_a_graph_each_way() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for layer in range(2):
            if random.uniform(0, 1) < 0.5:
                continue
            x = x * 2 + layer
        return x

    found = as_eager(function, fullgraph=True)
    assert len(found.entries) == 4


def test_many_ways_break_instead() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for layer in range(6):
            if random.random() < 0.5:
                x = x * 2 + layer
        return x

    found = as_eager(function)
    assert len(found.entries) < 8
    assert [graph_break.code for graph_break in found.breaks] == ["GB0003"]


def test_choices_and_orders_are_as_in_eager() -> None:
    def function(x: torch.Tensor) -> Any:
        items = ["a", "b", "c", "d"]
        first = random.choice(items)
        random.shuffle(items)
        return x, first, items, random.sample(range(100), 3), random.choices("xyz", k=2)

    as_eager(function)


def test_a_state_that_the_code_sets_makes_numbers_constant() -> None:
    def function(x: torch.Tensor) -> Any:
        before = random.random()
        random.seed(3)
        items = [1, 2, 3]
        random.shuffle(items)
        state = random.getstate()
        first = random.random()
        random.setstate(state)
        return x * before, items, first == random.random()

    found = as_eager(function, fullgraph=True)
    assert len(found.entries) == 1


def test_a_break_between_draws_keeps_their_order() -> None:
    def function(x: torch.Tensor) -> Any:
        a = random.random()
        if (x * a).sum() > 1.5:
            x = x + random.random()
        return x, random.random(), a

    as_eager(function)


def test_a_generator_with_methods_of_its_own_is_asked() -> None:
    class Fixed(random.Random):
        def random(self) -> float:
            return 0.25

    own = random.Random(1)
    fixed = Fixed()

    def function(x: torch.Tensor) -> Any:
        return x * fixed.uniform(0, 4), own.random(), own.uniform(0, 1)

    compiled = compile(function, run_graph)
    x = torch.ones(2)
    assert torch.equal(compiled(x)[0], x)
    own.random = lambda: 0.5  # type: ignore[method-assign]  # it is what is tested
    assert compiled(x)[1:] == (0.5, 0.5)


def test_numbers_in_text_and_lists_follow_the_stream() -> None:
    kept: list[float] = []

    def function(x: torch.Tensor) -> Any:
        kept.append(random.random())
        return x, f"{random.randint(0, 9)}", [random.random()] * 2

    as_eager(function)
    assert kept[:CALLS] == kept[CALLS:]


@pytest.mark.parametrize("dynamic", [True, False, None])
def test_any_setting_of_sizes_gives_the_same_numbers(dynamic: bool | None) -> None:
    def function(x: torch.Tensor) -> Any:
        return x * random.random(), random.randrange(7)

    as_eager(function, dynamic=dynamic)
