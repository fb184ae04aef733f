"""`scan` and `while_loop` as operators: a body runs again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plait_bytecode_tracer.control.again import Again
from plait_bytecode_tracer.control.bodies import Body, Compiling, is_differentiable
from plait_bytecode_tracer.control.gradients import StepGradient, returning_inputs, step_gradient
from plait_bytecode_tracer.control.operators import Operation, Run, Wanted, as_tuple
from plait_bytecode_tracer.control.surroundings import Autocast


class Scan(Operation):
    """A step for each row. Its operands are what the first step is handed, tensors of rows, and
    what is the same in all steps; its results are what the last step hands on, and the further
    results of all steps, stacked.

    Args:
        step: takes what is carried, a row of each tensor and the rest.
        carried: how many tensors each step hands on.
        rows: how many tensors of rows there are.
        reverse: whether it begins with the last row.
        keeps: whether what each step was handed is returned too, stacked.
    """

    name = "scan"

    def __init__(
        self,
        step: Body,
        kinds: Sequence[str],
        autocast: Autocast,
        carried: int,
        rows: int,
        *,
        reverse: bool = False,
        keeps: bool = False,
        draws: bool = False,
        compiling: Compiling | None = None,
    ) -> None:
        super().__init__([step], kinds, autocast, draws=draws, compiling=compiling)
        self.step, self.carried, self.rows = step, carried, rows
        self.reverse, self.keeps = reverse, keeps
        self._keeping: Scan | None = None
        self._copying: Scan | None = None
        self._steps: dict[Wanted, StepGradient] = {}

    @property
    def count(self) -> int:
        return len(self.step.results) + (self.carried if self.keeps else 0)

    def compute(self, run: Run, *inputs: Any) -> Sequence[torch.Tensor]:
        first, last = self.carried, self.carried + self.rows
        carry: Sequence[torch.Tensor] = inputs[:first]
        same = self.step.laid_out(inputs[last:], last)
        tables = [self._rows(table, place) for place, table in enumerate(inputs[first:last], first)]
        length = len(tables[0])
        places = range(length - 1, -1, -1) if self.reverse else range(length)
        stacks: list[tuple[torch.Tensor, ...]] = []
        whole: list[torch.Tensor] = []
        kept = [each.new_empty((length, *each.shape)) for each in carry if self.keeps]
        kept_rows = [each.unbind(0) for each in kept]
        for place in places:
            carry = self.step.laid_out(carry)
            for table, each in zip(kept_rows, carry, strict=False):
                table[place].copy_(each)
            found = run(self.step, *carry, *(table[place] for table in tables), *same)
            carry, results = found[:first], found[first:]
            if not whole:
                whole = [each.new_empty((length, *each.shape)) for each in results]
                stacks = [each.unbind(0) for each in whole]
            for table, each in zip(stacks, results, strict=True):
                table[place].copy_(each)
        return [*carry, *whole, *kept]

    def _rows(self, table: torch.Tensor, place: int) -> tuple[torch.Tensor, ...]:
        """The rows of a tensor, as they lie in memory where the step expects them."""
        expected = self.step.inputs[place]
        found = table.unbind(0)
        if expected._has_symbolic_sizes_strides:
            return found if found[0].is_contiguous() else table.contiguous().unbind(0)
        if found[0].stride() == expected.stride():
            return found
        strides = (expected.numel(), *expected.stride())
        copy = torch.empty_strided(table.shape, strides, dtype=table.dtype, device=table.device)
        return copy.copy_(table).unbind(0)

    def fake(self, *inputs: Any) -> Sequence[torch.Tensor]:
        first, last = self.carried, self.carried + self.rows
        length = inputs[first].shape[0]
        row = [table.select(0, 0) for table in inputs[first:last]]
        found = self.step.fake([*inputs[:first], *row, *inputs[last:]])
        stacked = [*found[first:], *(inputs[:first] if self.keeps else ())]
        return [*found[:first], *(each.new_empty((length, *each.shape)) for each in stacked)]

    def keeping(self) -> Operation:
        if self.keeps or not self.carried:
            return self
        if self._keeping is None:
            self._keeping = Scan(
                *(self.step, self.kinds, self.autocast, self.carried, self.rows),
                reverse=self.reverse,
                keeps=True,
                compiling=self.compiling,
            )
        return self._keeping

    def _with_copies(self) -> Scan:
        """The same, where the step itself returns what it was handed."""
        if self._copying is None:
            self._copying = Scan(
                *(returning_inputs(self.step, self.carried), self.kinds, self.autocast),
                *(self.carried, self.rows),
                reverse=self.reverse,
                compiling=self.compiling,
            )
        return self._copying

    def gradients(
        self, wanted: Wanted, inputs: Sequence[Any], kept: Sequence[Any], given: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        if self.keeps:
            kept = as_tuple(self.operator(*inputs))[-self.carried :]
            return self._with_copies().gradients(wanted, inputs, kept, given)
        if torch.is_grad_enabled():  # what was handed on has gradients too
            kept = as_tuple(self.keeping().operator(*inputs))[self.count :]
        operation = self._made(wanted, self._gradient)
        step = self._steps[wanted]
        first, last = self.carried, self.carried + self.rows
        count = len(step.floats)
        begun = step.start(given[:count], inputs)
        rows = [*kept, *inputs[first:last], *given[count:]]
        found = as_tuple(operation.operator(*begun, *rows, *inputs[last:]))
        places = (*step.floats, *step.others, *step.rows)
        by_place = dict(zip(places, found, strict=True))
        return [by_place[place] if each else None for place, each in enumerate(wanted)]

    def _gradient(self, wanted: Wanted) -> Operation:
        step = step_gradient(self.step, self.carried, self.rows, wanted)
        self._steps[wanted] = step
        further = sum(map(is_differentiable, self.step.results[self.carried :]))
        rows = self.carried + self.rows + further
        kinds = ["Tensor"] * (step.carried + rows) + [*self.kinds[self.carried + self.rows :]]
        return Scan(
            *(step.body, kinds, self.autocast, step.carried, rows),
            reverse=not self.reverse,
            compiling=self.compiling,
        )


class WhileLoop(Operation):
    """Its operands are what the first step is handed, then what is the same in all steps; its
    results are what the last step hands on. The first body tells whether there is another step."""

    name = "while_loop"

    def __init__(
        self,
        test: Body,
        step: Body,
        kinds: Sequence[str],
        autocast: Autocast,
        *,
        draws: bool = False,
        compiling: Compiling | None = None,
    ) -> None:
        super().__init__([test, step], kinds, autocast, draws=draws, compiling=compiling)
        self.test, self.step = test, step

    @property
    def count(self) -> int:
        return len(self.step.results)

    def compute(self, run: Run, *inputs: Any) -> Sequence[torch.Tensor]:
        steps = self.steps(run, inputs)
        return steps[-1] if len(steps) > 1 else [each.clone() for each in steps[0]]

    def steps(self, run: Run, inputs: Sequence[Any], *, all_of_them: bool = False) -> list[Any]:
        """What each step is handed, and what the last hands on: all, or the first and the last."""
        count = self.count
        same = self.step.laid_out(inputs[count:], count)
        carry = self.step.laid_out(inputs[:count])
        found = [carry]
        while run(self.test, *carry, *same)[0]:
            carry = self.step.laid_out(run(self.step, *carry, *same))
            if len(found) > 1 and not all_of_them:
                found.pop()
            found.append(carry)
        return found

    def fake(self, *inputs: Any) -> Sequence[torch.Tensor]:
        return self.step.fake(inputs)

    def gradients(
        self, wanted: Wanted, inputs: Sequence[Any], kept: Sequence[Any], given: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        found = iter(as_tuple(self._made(wanted, self._gradient).operator(*inputs, *given)))
        return [next(found) if each else None for each in wanted]

    def _gradient(self, wanted: Wanted) -> Operation:
        return WhileGradient(self, wanted)


class WhileGradient(Operation):
    """The gradients of a loop's operands. Its own operands are those of the loop, then the
    gradients of the loop's results that can have one. The loop runs again, and then back."""

    name = "while_gradient"

    def __init__(self, loop: WhileLoop, wanted: Wanted) -> None:
        self.loop, self.wanted = loop, wanted
        self.back = step_gradient(loop.step, loop.count, 0, wanted)
        kinds = [*loop.kinds, *["Tensor"] * len(self.back.floats)]
        super().__init__(
            [*loop.bodies, self.back.body], kinds, loop.autocast, compiling=loop.compiling
        )
        places = (*self.back.floats, *self.back.others)
        self._order = [places.index(place) for place, each in enumerate(wanted) if each]

    @property
    def count(self) -> int:
        return sum(self.wanted)

    def compute(self, run: Run, *inputs: Any) -> Sequence[torch.Tensor]:
        loop, back = self.loop, self.back
        operands, given = inputs[: len(loop.kinds)], inputs[len(loop.kinds) :]
        steps = loop.steps(run, operands, all_of_them=True)
        same = loop.step.laid_out(operands[loop.count :], loop.count)
        found: Sequence[Any] = [
            each.clone() for each in back.body.laid_out(back.start(given, operands))
        ]
        for carry in reversed(steps[:-1]):
            found = run(back.body, *back.body.laid_out(found), *carry, *same)
        return [found[place] for place in self._order]

    def fake(self, *inputs: Any) -> Sequence[torch.Tensor]:
        chosen = [place for place, each in enumerate(self.wanted) if each]
        return [torch.empty_like(inputs[place]) for place in chosen]

    def gradients(
        self, wanted: Wanted, inputs: Sequence[Any], kept: Sequence[Any], given: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        results = (True,) * self.count
        made = self._made(wanted, lambda wanted: Again(self, wanted, results))
        found = iter(as_tuple(made.operator(*inputs, *given)))
        return [next(found) if each else None for each in wanted]
