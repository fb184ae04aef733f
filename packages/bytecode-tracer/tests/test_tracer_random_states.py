"""States of torch's generators: where they are set, around the graph and in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from plait_bytecode_tracer import compile, compiled_function_of
from plait_bytecode_tracer.tensors.random_ops import OPERATORS

Graphs = list[torch.fx.GraphModule]


def as_eager(function: Callable[..., Any], *, ordered: bool, fullgraph: bool) -> tuple[Any, Graphs]:
    """Call a function with several seeds, compiled and not, over one stream."""
    graphs: Graphs = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append(module)
        return module.forward

    compiled = compile(function, backend, orders_draws=ordered, fullgraph=fullgraph)
    found = []
    for called in (function, compiled):
        torch.manual_seed(7)
        drawn = [called(torch.ones(3), seed) for seed in (3, 4, 5, 4)]
        found.append([*drawn, [torch.rand(2)], [torch.tensor(torch.initial_seed() % 1000)]])
    for expected, given in zip(*found, strict=True):
        for one, other in zip(expected, given, strict=True):
            assert torch.equal(one, other)
    return compiled_function_of(compiled), graphs


def operators(graphs: Graphs) -> int:
    """How many nodes read or set states."""
    return sum(node.target in OPERATORS for module in graphs for node in module.graph.nodes)


def seeded_first(x: torch.Tensor, seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.rand(2), x


def seeded_last(x: torch.Tensor, seed: int) -> Any:
    drawn = torch.rand(2)
    torch.manual_seed(seed)
    return drawn, x


def saved(x: torch.Tensor, seed: int) -> Any:
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    drawn = torch.rand(2)
    torch.set_rng_state(state)
    return drawn, x


def seeded_between(x: torch.Tensor, seed: int) -> Any:
    drawn = torch.rand(2)
    torch.manual_seed(seed)
    return drawn, torch.nn.functional.dropout(x, 0.5)


def saved_between(x: torch.Tensor, seed: int) -> Any:
    drawn = torch.rand(seed)
    state = torch.get_rng_state()
    first = torch.rand(2)
    torch.set_rng_state(state)
    return drawn, first, torch.rand(2), state


def forked(x: torch.Tensor, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = torch.rand(2)
    return drawn, torch.rand(2)


@pytest.mark.parametrize("function", [seeded_first, seeded_last, saved])
def test_states_around_the_draws_are_set_around_the_graph(function: Callable[..., Any]) -> None:
    found, graphs = as_eager(function, ordered=False, fullgraph=True)
    assert operators(graphs) == 0
    assert len(found.entries) == 2  # a seed that changes is a number


@pytest.mark.parametrize("function", [seeded_between, saved_between, forked])
def test_states_between_draws_are_nodes_where_the_backend_keeps_their_order(
    function: Callable[..., Any],
) -> None:
    _, graphs = as_eager(function, ordered=True, fullgraph=True)
    assert operators(graphs) > 0


@pytest.mark.parametrize("function", [seeded_between, saved_between, forked])
def test_states_between_draws_break_elsewhere(function: Callable[..., Any]) -> None:
    found, graphs = as_eager(function, ordered=False, fullgraph=False)
    assert operators(graphs) == 0
    assert {graph_break.code for graph_break in found.breaks} == {"GB0002"}


def test_a_seed_is_no_input_of_the_graph() -> None:
    _, graphs = as_eager(seeded_first, ordered=True, fullgraph=True)
    for module in graphs:
        (placeholder,) = module.graph.find_nodes(op="placeholder")
        assert isinstance(placeholder.meta["val"], torch.Tensor)


def test_a_graph_that_fails_leaves_the_states_that_the_program_leaves() -> None:
    def function(x: torch.Tensor, place: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            drawn = torch.rand(2)
            return torch.index_select(x, 0, torch.tensor([place])), drawn

    compiled = compile(function, lambda module, inputs: module.forward)
    x = torch.ones(3)
    for place in (0, 1, 2):
        compiled(x, place)
    torch.manual_seed(11)
    expected = torch.rand(2)
    torch.manual_seed(11)
    with pytest.raises((IndexError, RuntimeError)):
        compiled(x, 9)
    assert torch.equal(torch.rand(2), expected)


def test_graphs_get_what_a_generator_draws_and_never_the_generator() -> None:
    def function(x: torch.Tensor, generator: torch.Generator) -> Any:
        noise = torch.randn(3, generator=generator)
        return x + noise, torch.empty(2, 3).uniform_(generator=generator)

    graphs: Graphs = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        assert all(isinstance(each, torch.Tensor) for each in inputs)
        graphs.append(module)
        return module.forward

    compiled = compile(function, backend, fullgraph=True)
    one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    default = torch.get_rng_state()
    for _ in range(3):
        for expected, given in zip(
            function(torch.ones(3), one), compiled(torch.ones(3), other), strict=True
        ):
            assert torch.equal(expected, given)
    assert torch.equal(one.get_state(), other.get_state())
    assert torch.equal(default, torch.get_rng_state())
    assert len(graphs) == 1
    for _ in range(12):  # another generator is no other program
        compiled(torch.ones(3), torch.Generator())
    assert len(graphs) == 1


def test_a_call_that_fails_in_the_guards_moves_no_generator() -> None:
    def function(x: torch.Tensor, generator: torch.Generator) -> Any:
        return x + torch.randn(x.shape, generator=generator)

    compiled = compile(function, lambda module, inputs: module.forward, fullgraph=True)
    one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for x in (torch.ones(3), torch.ones(4), torch.ones(3, dtype=torch.float64), torch.ones(4)):
        assert torch.equal(function(x, one), compiled(x, other))
