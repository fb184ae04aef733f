"""Results of code that switches inference mode are tensors of that mode where eager's are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from plait_bytecode_tracer import CompiledFunction
from plait_bytecode_tracer.tensors.ambient import enter_inference_mode

W = torch.nn.Parameter(torch.arange(3.0))


def traced(program: Callable[..., Any]) -> CompiledFunction:
    """Compiled by what makes all results in the mode in which it is called, as compilers do."""

    def backend(module: fx.GraphModule, *_: object) -> Callable[..., Any]:
        graph = fx.Graph()
        graph.output(graph.graph_copy(module.graph, {}))
        for node in graph.nodes:
            if node.target is enter_inference_mode:
                node.args = (False,)
        return fx.GraphModule(module, graph).forward

    return CompiledFunction(program, backend)


@torch.inference_mode()
def decorated(x: torch.Tensor) -> Any:
    y = x * W
    return y, y[1:], y, x, x[:1], {"most": y.argmax(-1)}


def within(x: torch.Tensor) -> Any:
    before = x + 1
    with torch.inference_mode():
        y = before.sin()
    return before, y, y.clone()


def left_for_a_while(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
        with torch.inference_mode(False):
            z = x * W
        return y, z, x + z.detach()


@pytest.mark.parametrize("program", [decorated, within, left_for_a_while])
@pytest.mark.parametrize("enabled", [False, True])
def test_they_are_as_in_eager(program: Callable[..., Any], enabled: bool) -> None:
    made = traced(program)
    x = torch.ones(3)
    for _ in range(2):
        with torch.inference_mode(enabled):
            wanted, got = tree_leaves(program(x)), tree_leaves(made(x))
        assert [t.is_inference() for t in got] == [t.is_inference() for t in wanted]
        assert [t.requires_grad for t in got] == [t.requires_grad for t in wanted]
        assert all(map(torch.equal, got, wanted))
        same = [[one is other for other in wanted] for one in wanted]
        assert [[one is other for other in got] for one in got] == same


def test_autograd_refuses_to_save_them() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            y = x * 2
        return (y * W).sum()

    with pytest.raises(RuntimeError, match="cannot be saved for backward"):
        traced(program)(torch.ones(3))
