"""`backward()` in traced code: one graph, and gradients as autograd leaves them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

from plait_bytecode_tracer import compile, compiled_function_of


def _compiled(function: Callable[..., Any], **options: Any) -> tuple[Any, list[fx.GraphModule]]:
    graphs: list[fx.GraphModule] = []

    def backend(graph_module: fx.GraphModule, example_inputs: object) -> Any:
        graphs.append(graph_module)
        return graph_module.forward

    return compile(function, backend, **options), graphs


def _twins() -> tuple[nn.Module, nn.Module]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)))
    return made[0], made[1]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "foreach": True}),
    ],
)
def test_step_is_one_graph_and_bitwise_equal(kind: Any, given: Any) -> None:
    def step_of(model: nn.Module) -> Callable[..., torch.Tensor]:
        optimizer = kind(model.parameters(), **given)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    one, other = _twins()
    eager, (fast, graphs) = step_of(one), _compiled(step_of(other), fullgraph=True)
    for _ in range(5):
        x, y = torch.randn(4, 3), torch.randn(4, 1)
        assert torch.equal(fast(x, y), eager(x, y))
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        assert q.grad is None
    assert len(graphs) <= 3  # the optimizer's state comes into being in the first step


def test_scheduled_learning_rate_costs_few_graphs() -> None:
    model, _ = _twins()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    fast, graphs = _compiled(step, fullgraph=True)
    for _ in range(6):
        fast(torch.randn(4, 3))
        scheduler.step()
    assert len(graphs) <= 2


def test_gradient_that_is_there_is_added_to_in_place() -> None:
    def accumulate(x: torch.Tensor) -> None:
        (x * x).sum().backward()

    fast, graphs = _compiled(accumulate, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    fast(x)
    first = x.grad
    fast(x)
    assert x.grad is first
    assert torch.equal(x.grad, torch.full((3,), 4.0))
    assert len(graphs) == 2


@pytest.mark.filterwarnings("ignore:Using backward")
def test_gradients_with_a_graph_are_part_of_the_graph() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        (x**3).sum().backward(create_graph=True)
        penalty = x.grad.square().sum()
        x.grad = None
        penalty.backward()
        return penalty.detach()

    fast, graphs = _compiled(step, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    assert fast(x).item() == 27
    assert torch.equal(x.grad, torch.full((3,), 36.0))
    assert len(graphs) == 1


@pytest.mark.filterwarnings("error")
def test_pass_whose_warning_is_an_error_breaks() -> None:
    fast, _ = _compiled(lambda x: (x**2).sum().backward(create_graph=True))
    with contextlib.suppress(UserWarning):  # it is given once in a process
        fast(torch.ones(3, requires_grad=True))
    assert compiled_function_of(fast).breaks[0].code == "GB0005"


def test_hook_that_comes_later_is_noticed() -> None:
    def backward(x: torch.Tensor) -> None:
        (x * x).sum().backward()

    fast, _ = _compiled(backward)
    x, seen = torch.ones(3, requires_grad=True), []
    fast(x)
    x.grad = None
    x.register_hook(seen.append)
    fast(x)
    assert len(seen) == 1
    assert torch.equal(x.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    ("code", "why", "function"),
    [
        (
            *("GB0009", "sparse"),
            lambda x: nn.functional.embedding(_ROWS, x, sparse=True).sum().backward(),
        ),
        ("GB0002", "history from before", lambda x: (_BEFORE * x).sum().backward()),
    ],
)
def test_what_breaks_says_why(code: str, why: str, function: Callable[..., Any]) -> None:
    fast, _ = _compiled(function)
    x = torch.ones(3, 2, requires_grad=True)
    fast(x)
    assert x.grad is not None
    found = compiled_function_of(fast).breaks[0]
    assert found.code == code
    assert why in found.reason


_ROWS = torch.tensor([0, 2])
_BEFORE = torch.ones(3, 2, requires_grad=True) * 2


def test_functions_that_only_compute_are_gone_through() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(value)
            return value**3

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (value,) = ctx.saved_tensors
            return gradient * 3 * value**2

    def backward(x: torch.Tensor) -> None:
        Cube.apply(x).sum().backward()

    fast, graphs = _compiled(backward, fullgraph=True)
    x = torch.full((3,), 2.0, requires_grad=True)
    fast(x)
    assert torch.equal(x.grad, torch.full((3,), 12.0))
    assert len(graphs) == 1


@pytest.mark.parametrize("is_inside", [True, False])
def test_backward_hooks_of_modules_that_compute_are_in_the_graph(is_inside: bool) -> None:
    one, other = _twins()
    for model in (one, other):
        model[1].register_full_backward_pre_hook(lambda module, grads: (grads[0].clamp(-1, 1),))
        model[1].register_full_backward_hook(lambda module, grads, outs: (grads[0] * outs[0],))

    def step_of(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        def step(x: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = model(x).square().sum()
            if is_inside:
                loss.backward()
            return loss

        return step

    eager, (fast, graphs) = step_of(one), _compiled(step_of(other), fullgraph=True)
    for _ in range(2):
        x = torch.randn(4, 3)
        for call in (eager, fast):
            loss = call(x)
            if not is_inside:
                loss.backward()
        for p, q in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad)
    assert len(graphs) == 1 + is_inside  # a gradient that is there is added to
