"""A backend is told of a call before that is traced."""

from __future__ import annotations

from typing import Any

import torch

from plait_bytecode_tracer import CompiledFunction


def test_it_is_told_of_each_call_that_is_traced_and_of_no_other() -> None:
    events: list[Any] = []

    def backend(graph: torch.fx.GraphModule, *given: object) -> Any:
        events.append("compiled")
        return graph.forward

    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    compiled = CompiledFunction(
        function, backend, dynamic=False, before_trace=lambda values: events.append(tuple(values))
    )
    x = torch.ones(3)
    compiled(x, 2)
    compiled(x, n=2)
    compiled(x, 3)
    assert events == [(x, 2), "compiled", (x, 3), "compiled"]
