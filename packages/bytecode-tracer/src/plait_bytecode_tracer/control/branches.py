"""`cond` as an operator: one of two bodies runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plait_bytecode_tracer.control.bodies import is_differentiable
from plait_bytecode_tracer.control.drawing import apart, draw_from, fake_state, state_now
from plait_bytecode_tracer.control.gradients import gradient_body
from plait_bytecode_tracer.control.operators import Draws, Operation, Run, Wanted, as_tuple


class Cond(Operation):
    """Its operands are what is asked, then what both bodies take. Both give results alike."""

    name = "cond"

    @property
    def count(self) -> int:
        return len(self.bodies[0].results) + (self.draws is Draws.KEPT)

    def compute(self, run: Run, *inputs: Any) -> Sequence[torch.Tensor]:
        body = self.bodies[0 if inputs[0] else 1]
        if self.draws is Draws.AGAIN:
            with apart():
                draw_from(inputs[-1])
                return run(body, *body.laid_out(inputs[1:-1]))
        state = [state_now()] if self.draws is Draws.KEPT else []
        return [*run(body, *body.laid_out(inputs[1:])), *state]

    def fake(self, *inputs: Any) -> Sequence[torch.Tensor]:
        operands = inputs[1:-1] if self.draws is Draws.AGAIN else inputs[1:]
        state = [fake_state()] if self.draws is Draws.KEPT else []
        return [*self.bodies[0].fake(operands), *state]

    def drawing(self, draws: Draws) -> Operation:
        kinds = [*self.kinds, "Tensor"] if draws is Draws.AGAIN else self.kinds
        return Cond(self.bodies, kinds, self.autocast, draws=draws, compiling=self.compiling)

    def gradients(
        self, wanted: Wanted, inputs: Sequence[Any], kept: Sequence[Any], given: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        if self.draws is Draws.FRESH:
            return self._drawn_again(wanted, inputs, kept, given)
        end = len(inputs) - (self.draws is Draws.AGAIN)
        operator = self._made(wanted, self._gradient).operator
        found = iter(as_tuple(operator(*inputs[:end], *given, *inputs[end:])))
        return [next(found) if each else None for each in wanted]

    def _gradient(self, wanted: Wanted) -> Operation:
        bodies = [gradient_body(body, wanted[1 : 1 + len(body.inputs)]) for body in self.bodies]
        results = sum(map(is_differentiable, self.bodies[0].results))
        end = 1 + len(self.bodies[0].inputs)
        kinds = [*self.kinds[:end], *["Tensor"] * results, *self.kinds[end:]]
        return Cond(bodies, kinds, self.autocast, draws=self.draws, compiling=self.compiling)
