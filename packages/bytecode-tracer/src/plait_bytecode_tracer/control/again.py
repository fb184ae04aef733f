"""Gradients of an operator, by running it again under autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.control.bodies import Body, Compiling, is_differentiable
from plait_bytecode_tracer.control.gradients import differentiable_again, needing_gradients
from plait_bytecode_tracer.control.operators import Operation, Run, Wanted, as_tuple


class Again(Operation):
    """The gradients of another operator's operands. Its own are those, and the gradients of the
    results that can have one; the bodies run as they were captured."""

    name = "again"

    def __init__(self, other: Operation, wanted: Wanted, results: Sequence[bool]) -> None:
        kinds = [*other.kinds, *["Tensor"] * sum(results)]
        super().__init__(other.bodies, kinds, other.autocast)
        self.other, self.wanted, self.results = other, wanted, tuple(results)

    @property
    def count(self) -> int:
        return sum(self.wanted)

    def compute(self, run: Run, *inputs: Any) -> Sequence[torch.Tensor]:
        operands, given = [*inputs[: len(self.other.kinds)]], inputs[len(self.other.kinds) :]
        with torch.enable_grad():
            for place, each in enumerate(self.wanted):
                if each:
                    operands[place] = needing_gradients(operands[place])
            found = self.other.compute(_AsCaptured(), *operands)
        results = [each for each, has in zip(found, self.results, strict=True) if has]
        used = [pair for pair in zip(results, given, strict=True) if pair[0].requires_grad]
        asked = [each for each, is_asked in zip(operands, self.wanted, strict=True) if is_asked]
        if not used:
            return [torch.zeros_like(each) for each in asked]
        return torch.autograd.grad(
            [result for result, _ in used],
            asked,
            [gradient for _, gradient in used],
            allow_unused=True,
            materialize_grads=True,
            create_graph=torch.is_grad_enabled(),
        )

    def fake(self, *inputs: Any) -> Sequence[torch.Tensor]:
        return [torch.empty_like(inputs[n]) for n, each in enumerate(self.wanted) if each]

    def gradients(
        self, wanted: Wanted, inputs: Sequence[Any], kept: Sequence[Any], given: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        results = [is_differentiable(inputs[n]) for n, each in enumerate(self.wanted) if each]
        made = self._made(wanted, lambda wanted: Again(self, wanted, results))
        found = iter(as_tuple(made.operator(*inputs, *given)))
        return [next(found) if each else None for each in wanted]


class _AsCaptured(Run):
    """Calls bodies with gradients, which can be differentiated again."""

    def __init__(self) -> None:
        super().__init__(Compiling())
        self._modules: dict[Body, fx.GraphModule] = {}

    def of(self, body: Body, inputs: Sequence[Any]) -> Callable[..., Sequence[torch.Tensor]]:
        if body not in self._modules:
            self._modules[body] = differentiable_again(body)
        forward = self._modules[body].forward

        def call(*inputs: Any) -> Sequence[torch.Tensor]:
            with torch.enable_grad():
                return tuple(forward(*inputs))

        return call
