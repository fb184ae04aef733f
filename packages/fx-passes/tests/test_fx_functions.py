"""Functions of the program's own whose backward sees which gradients are given."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

import plait_fx_passes as fx_passes


class Choosing(torch.autograd.Function):
    """Its gradient depends on which of its results is used, and so do the values it needs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, a: Any, b: Any) -> Any:
        x, y = ctx.saved_tensors
        if a is None:
            return b * y, None
        if b is None:
            return a * x + 5, a * 7
        return a + b, b - a


class Module(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return Choosing.apply(x, y)


def _choose(x: torch.Tensor, y: torch.Tensor) -> Any:
    return Choosing.apply(x, y)


def build(of: str) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    root = torch.nn.Module()
    root.choosing = Module()
    if of == "a module":
        pair = graph.call_module("choosing", (x, y))
    else:
        pair = graph.call_function(_choose, (x, y))
    first = graph.call_method("sin", (graph.call_function(operator.getitem, (pair, 0)),))
    second = graph.call_method("cos", (graph.call_function(operator.getitem, (pair, 1)),))
    graph.output((first, second))
    return torch.fx.GraphModule(root, graph)


@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("of", ["a module", "a function"])
def test_gradients_are_those_of_the_ones_that_are_given(of: str, given: tuple[bool, bool]) -> None:
    program = build(of)
    inputs = [torch.randn(3, requires_grad=True) for _ in range(2)]
    joint = fx_passes.to_joint(program, inputs)
    assert joint.tells_apart
    parts = fx_passes.partition(joint)
    forward, backward = parts.forward.module(), parts.backward.module()
    run = fx_passes.wrap_training(joint, parts, forward, backward, program)
    found = []
    for each in (run, program):
        results: Any = each(*inputs)
        chosen = [one for one, is_given in zip(results, given, strict=True) if is_given]
        tangents = [torch.full_like(one, 2.0) for one in chosen]
        found.append(torch.autograd.grad(chosen, inputs, tangents, allow_unused=True))
    for one, two in zip(*found, strict=True):
        assert (one is None) is (two is None)
        if one is not None:
            torch.testing.assert_close(one, two)


def test_functions_with_one_result_have_nothing_to_tell_apart() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            return a * 2

    class Doubling(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return Double.apply(x)

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    doubled = graph.call_module("doubling", (x,))
    graph.output((doubled, graph.call_method("sin", (doubled,))))
    root = torch.nn.Module()
    root.doubling = Doubling()
    program = torch.fx.GraphModule(root, graph)
    assert not fx_passes.to_joint(program, [torch.randn(2, requires_grad=True)]).tells_apart


def test_writes_to_inputs_that_share_memory_are_refused():
    def write(x: torch.Tensor, y: torch.Tensor, whole: torch.Tensor, part: torch.Tensor) -> Any:
        part.add_(1)
        return Choosing.apply(x, y + whole[1:])

    x, y = torch.randn(2, requires_grad=True), torch.randn(2, requires_grad=True)
    whole = torch.randn(3)
    graph = torch.fx.Graph()
    given = [graph.placeholder(name) for name in ("x", "y", "whole", "part")]
    graph.output(graph.call_function(write, tuple(given)))
    program = torch.fx.GraphModule(torch.nn.Module(), graph)
    with pytest.raises(fx_passes.AtenTraceError, match="tell which gradients"):
        fx_passes.to_joint(program, [x, y, whole, whole[1:]])


class Clipped(torch.autograd.Function):
    """Lets no gradient through that is above 1."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return given.clamp(max=1)


class Weighed(torch.autograd.Function):
    """Does with gradients what formulas do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        kept = torch.where(x > 0, given * x, torch.zeros_like(given))
        return -(kept + given.flip(0) / 3).sum(0, keepdim=True).expand_as(x)


def clipped(x: torch.Tensor) -> Any:
    return Clipped.apply(x)


def weighed(x: torch.Tensor) -> Any:
    return Weighed.apply(x)


def returning_between(function: Any) -> torch.fx.GraphModule:
    """Returns a value, and one that is computed from it and from what the function returned."""
    graph = torch.fx.Graph()
    made = graph.call_function(function, (graph.placeholder("x"),))
    between = graph.call_function(operator.mul, (made, 3))
    graph.output((between, graph.call_function(operator.mul, (made, between))))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_clipped_gradients_do_not_come_in_parts() -> None:
    """What comes to the function through the first result would be clipped apart from the rest."""
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(fx_passes.WaypointError, match="more with gradients than weigh them"):
        fx_passes.to_joint(returning_between(clipped), [x])


def test_weighed_gradients_may_come_in_parts() -> None:
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
    program = returning_between(weighed)
    joint = fx_passes.to_joint(program, [x])
    parts = fx_passes.partition(joint)
    forward, backward = parts.forward.module(), parts.backward.module()
    run = fx_passes.wrap_training(joint, parts, forward, backward, program)
    found = []
    for each in (run, program):
        between, product = each(x)
        loss = between.sin().sum() + product.square().sum()
        found.append(torch.autograd.grad(loss, x)[0])
    torch.testing.assert_close(found[0], found[1])
