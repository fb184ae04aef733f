"""Programs that differentiate inside, and what they return of which autograd's graph is used up.

A training step calls ``torch.autograd.grad`` itself. Afterwards the graph of its loss is freed:
the loss says that it requires gradients, and going backward from it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

_SECOND_TIME = "a second time"
USED_UP = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


def differentiates(gm: fx.GraphModule) -> bool:
    """Whether the program itself computes gradients."""
    return any(node.target is torch.autograd.grad for node in gm.graph.nodes)


def uses_up(gm: fx.GraphModule) -> bool:
    """Whether the program computes gradients that free autograd's graph."""
    passes = [node for node in gm.graph.nodes if node.target is torch.autograd.grad]
    return any(not _keeps(node) for node in passes)


def _keeps(node: fx.Node) -> bool:
    """Whether a call of ``torch.autograd.grad`` keeps the graph: as it is told, or as it makes
    one of the gradients."""
    given = dict(zip(("retain_graph", "create_graph"), node.args[3:5], strict=False))
    given.update(node.kwargs)
    kept = given.get("retain_graph")
    return bool(given.get("create_graph", False) if kept is None else kept)


def is_spent(mode: FakeTensorMode, output: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether going backward from a fake tensor to the inputs raises, as its graph is freed."""
    if output.grad_fn is None or not inputs:
        return False
    try:
        with mode:  # its formulas make tensors
            torch.autograd.grad(
                [output], inputs, [torch.zeros_like(output)], retain_graph=True, allow_unused=True
            )
    except RuntimeError as error:
        return _SECOND_TIME in str(error)
    return False


class _Spent(torch.autograd.Function):
    """Stands for a graph that is freed."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> None:
        raise RuntimeError(USED_UP)


def as_spent(value: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that requires gradients, from which none can be had."""
    apply: Callable[..., torch.Tensor] = _Spent.apply
    with torch.enable_grad():
        return apply(torch.empty(0, requires_grad=True), value)
