"""`cond` as an operator: one of two bodies runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plait_bytecode_tracer.control.bodies import is_differentiable
from plait_bytecode_tracer.control.gradients import gradient_body
from plait_bytecode_tracer.control.operators import Operation, Run, Wanted, as_tuple


class Cond(Operation):
    """Its operands are what is asked, then what both bodies take. Both give results alike."""

    name = "cond"

    @property
    def count(self) -> int:
        return len(self.bodies[0].results)

    def compute(self, run: Run, *inputs: Any) -> Sequence[torch.Tensor]:
        body = self.bodies[0 if inputs[0] else 1]
        return run(body, *body.laid_out(inputs[1:]))

    def fake(self, *inputs: Any) -> Sequence[torch.Tensor]:
        return self.bodies[0].fake(inputs[1:])

    def gradients(
        self, wanted: Wanted, inputs: Sequence[Any], kept: Sequence[Any], given: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        found = iter(as_tuple(self._made(wanted, self._gradient).operator(*inputs, *given)))
        return [next(found) if each else None for each in wanted]

    def _gradient(self, wanted: Wanted) -> Operation:
        results = sum(map(is_differentiable, self.bodies[0].results))
        bodies = [gradient_body(body, wanted[1:]) for body in self.bodies]
        kinds = [*self.kinds, *["Tensor"] * results]
        return Cond(bodies, kinds, self.autocast, compiling=self.compiling)
