"""`scan` and `while_loop` as operators: a body runs again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from plait_bytecode_tracer.control.again import Again
from plait_bytecode_tracer.control.bodies import Body, Compiling, is_differentiable
from plait_bytecode_tracer.control.drawing import apart, draw_from, fake_state, state_now
from plait_bytecode_tracer.control.gradients import StepGradient, returning_inputs, step_gradient
from plait_bytecode_tracer.control.operators import Draws, Operation, Run, Wanted, as_tuple
from plait_bytecode_tracer.control.surroundings import Autocast


class Scan(Operation):
    """A step for each row. Its operands are what the first step is handed, tensors of rows, and
    what is the same in all steps; its results are what the last step hands on, and the further
    results of all steps, stacked. Where states of the generator are given, each step draws from its
    own: they are one tensor of rows more, behind the others.

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
        draws: Draws = Draws.NONE,
        compiling: Compiling | None = None,
    ) -> None:
        super().__init__([step], kinds, autocast, draws=draws, compiling=compiling)
        self.step, self.carried, self.rows = step, carried, rows
        self.reverse, self.keeps = reverse, keeps
        self._keeping: Scan | None = None
        self._copying: Scan | None = None
        self._first_same = carried + rows + (draws is Draws.AGAIN)
        self._steps: dict[Wanted, StepGradient] = {}

    @property
    def count(self) -> int:
        states = self.draws is Draws.KEPT
        return len(self.step.results) + (self.carried if self.keeps else 0) + states

    def compute(self, run: Run, *inputs: Any) -> Sequence[torch.Tensor]:
        if self.draws is not Draws.AGAIN:
            return self._computed(run, inputs, ())
        with apart():
            return self._computed(run, inputs, inputs[self.carried + self.rows].unbind(0))

    def _computed(
        self, run: Run, inputs: Sequence[Any], states: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        first, last = self.carried, self.carried + self.rows
        carry: Sequence[torch.Tensor] = inputs[:first]
        same = self.step.laid_out(inputs[self._first_same :], last)
        tables = [self._rows(table, place) for place, table in enumerate(inputs[first:last], first)]
        rows = [table.unbind(0) for table in tables]
        length = len(rows[0])
        places = range(length - 1, -1, -1) if self.reverse else range(length)
        stacks: list[tuple[torch.Tensor, ...]] = []
        whole: list[torch.Tensor] = []
        kept = [each.new_empty((length, *each.shape)) for each in carry if self.keeps]
        if self.draws is Draws.KEPT:
            kept.append(state_now().new_empty((length, len(state_now()))))
        kept_rows = [each.unbind(0) for each in kept]
        stays = self.step.hands_on >= first
        call: Callable[..., Sequence[torch.Tensor]] | None = None
        for number, place in enumerate(places):
            if call is None or not stays:
                carry = self.step.laid_out(carry)
            if number == 1 and self.draws is Draws.NONE:
                rest = run.repeated(self.step, places[1:], carry, tables, same, whole, kept)
                if rest is not None:
                    carry = rest
                    break
            handed = [*carry, state_now()] if self.draws is Draws.KEPT else carry
            for table, each in zip(kept_rows, handed, strict=False):
                table[place].copy_(each)
            if states:
                draw_from(states[place])
            given = [*carry, *[each[place] for each in rows], *same]
            call = call or run.of(self.step, given)
            found = call(*given)
            carry, results = found[:first], found[first:]
            if not whole:
                whole = [each.new_empty((length, *each.shape)) for each in results]
                stacks = [each.unbind(0) for each in whole]
            for table, each in zip(stacks, results, strict=True):
                table[place].copy_(each)
        return [*carry, *whole, *kept]

    def _rows(self, table: torch.Tensor, place: int) -> torch.Tensor:
        """A tensor of rows that lie in memory as the step expects them."""
        expected = self.step.inputs[place]
        if expected._has_symbolic_sizes_strides:
            return table if table[0].is_contiguous() else table.contiguous()
        if table.stride()[1:] == expected.stride():
            return table
        strides = (expected.numel(), *expected.stride())
        copy = torch.empty_strided(table.shape, strides, dtype=table.dtype, device=table.device)
        return copy.copy_(table)

    def fake(self, *inputs: Any) -> Sequence[torch.Tensor]:
        first, last = self.carried, self.carried + self.rows
        length = inputs[first].shape[0]
        row = [table.select(0, 0) for table in inputs[first:last]]
        found = self.step.fake([*inputs[:first], *row, *inputs[self._first_same :]])
        stacked = [*found[first:], *(inputs[:first] if self.keeps else ())]
        if self.draws is Draws.KEPT:
            stacked.append(fake_state())
        return [*found[:first], *(each.new_empty((length, *each.shape)) for each in stacked)]

    def keeping(self) -> Operation:
        if self.keeps or not (self.carried or self.draws is Draws.FRESH):
            return self
        if self._keeping is None:
            draws = Draws.KEPT if self.draws is Draws.FRESH else self.draws
            self._keeping = self._like(self.step, draws, keeps=True)
        return self._keeping

    def drawing(self, draws: Draws) -> Operation:
        return self._like(self.step, draws, keeps=False)

    def _like(self, step: Body, draws: Draws, *, keeps: bool) -> Scan:
        """The same with another step, that draws in another way."""
        kinds = [*self.kinds]
        if draws is Draws.AGAIN and self.draws is not Draws.AGAIN:
            kinds.insert(self.carried + self.rows, "Tensor")
        return Scan(
            *(step, kinds, self.autocast, self.carried, self.rows),
            reverse=self.reverse,
            keeps=keeps,
            draws=draws,
            compiling=self.compiling,
        )

    def _with_copies(self) -> Scan:
        """The same, where the step itself returns what it was handed."""
        if self._copying is None:
            step = returning_inputs(self.step, self.carried)
            self._copying = self._like(step, self.draws, keeps=False)
        return self._copying

    def gradients(
        self, wanted: Wanted, inputs: Sequence[Any], kept: Sequence[Any], given: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        first, last = self.carried, self.carried + self.rows
        if self.draws is Draws.FRESH:
            again = self.variant(Draws.AGAIN)
            wanted = (*wanted[:last], False, *wanted[last:])
            inputs = [*inputs[:last], kept[-1], *inputs[last:]]
            found = again.gradients(wanted, inputs, kept[:-1], given)
            return [*found[:last], *found[last + 1 :]]
        if self.keeps:
            kept = as_tuple(self.operator(*inputs))[-first:]
            return self._with_copies().gradients(wanted, inputs, kept, given)
        if torch.is_grad_enabled() and first:  # what was handed on has gradients too
            kept = as_tuple(self.keeping().operator(*inputs))[self.count :]
        operation = self._made(wanted, self._gradient)
        step = self._steps[wanted]
        count = len(step.floats)
        same = inputs[self._first_same :]
        begun = step.start(given[:count], [*inputs[:last], *same])
        states = inputs[last : self._first_same]
        rows = [*kept, *inputs[first:last], *given[count:], *states]
        results = as_tuple(operation.operator(*begun, *rows, *same))
        places = (*step.floats, *step.others, *step.rows)
        by_place = dict(zip(places, results, strict=True))
        asked = [*wanted[:last], *wanted[self._first_same :]]
        of_step = [by_place[place] if each else None for place, each in enumerate(asked)]
        return [*of_step[:last], *(None for _ in states), *of_step[last:]]

    def _gradient(self, wanted: Wanted) -> Operation:
        last = self.carried + self.rows
        asked = (*wanted[:last], *wanted[self._first_same :])
        step = step_gradient(self.step, self.carried, self.rows, asked)
        self._steps[wanted] = step
        rows = last + sum(map(is_differentiable, self.step.results[self.carried :]))
        tensors = step.carried + rows + (self.draws is Draws.AGAIN)
        kinds = ["Tensor"] * tensors + [*self.kinds[self._first_same :]]
        return Scan(
            *(step.body, kinds, self.autocast, step.carried, rows),
            reverse=not self.reverse,
            draws=self.draws,
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
        draws: Draws = Draws.NONE,
        compiling: Compiling | None = None,
    ) -> None:
        super().__init__([test, step], kinds, autocast, draws=draws, compiling=compiling)
        self.test, self.step = test, step

    @property
    def count(self) -> int:
        return len(self.step.results) + (self.draws is Draws.KEPT)

    def compute(self, run: Run, *inputs: Any) -> Sequence[torch.Tensor]:
        begun = [state_now()] if self.draws is Draws.KEPT else []
        if self.draws is Draws.AGAIN:
            with apart():
                draw_from(inputs[-1])
                steps = self.steps(run, inputs[:-1])
        else:
            steps = self.steps(run, inputs)
        last = steps[-1] if len(steps) > 1 else [each.clone() for each in steps[0]]
        return [*last, *begun]

    def steps(
        self, run: Run, inputs: Sequence[Any], states: list[torch.Tensor] | None = None
    ) -> list[Any]:
        """What the first step is handed and the last hands on; with a list of states, all between
        too, and to the list is added what each step draws from."""
        count = len(self.step.results)
        same = self.step.laid_out(inputs[count:], count)
        carry = self.step.laid_out(inputs[:count])
        found = [carry]
        while run(self.test, *carry, *same)[0]:
            if states is not None and self.draws is not Draws.NONE:
                states.append(state_now())
            carry = self.step.laid_out(run(self.step, *carry, *same))
            if len(found) > 1 and states is None:
                found.pop()
            found.append(carry)
        return found

    def fake(self, *inputs: Any) -> Sequence[torch.Tensor]:
        operands = inputs[:-1] if self.draws is Draws.AGAIN else inputs
        state = [fake_state()] if self.draws is Draws.KEPT else []
        return [*self.step.fake(operands), *state]

    def drawing(self, draws: Draws) -> Operation:
        kinds = [*self.kinds, "Tensor"] if draws is Draws.AGAIN else self.kinds
        options: dict[str, Any] = {"draws": draws, "compiling": self.compiling}
        return WhileLoop(self.test, self.step, kinds, self.autocast, **options)

    def gradients(
        self, wanted: Wanted, inputs: Sequence[Any], kept: Sequence[Any], given: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        if self.draws is Draws.FRESH:
            return self._drawn_again(wanted, inputs, kept, given)
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
        self._redraws = loop.draws is Draws.AGAIN
        end = len(wanted) - self._redraws
        self.back = step_gradient(loop.step, loop.count, 0, wanted[:end])
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
        count = len(self.loop.kinds)
        operands, given = inputs[:count], inputs[count:]
        if not self._redraws:
            return self._computed(run, operands, given)
        with apart():
            draw_from(operands[-1])
            return self._computed(run, operands[:-1], given)

    def _computed(
        self, run: Run, operands: Sequence[Any], given: Sequence[Any]
    ) -> list[torch.Tensor]:
        loop, back = self.loop, self.back
        states: list[torch.Tensor] = []
        steps = loop.steps(run, operands, states)
        same = loop.step.laid_out(operands[loop.count :], loop.count)
        found: Sequence[Any] = [
            each.clone() for each in back.body.laid_out(back.start(given, operands))
        ]
        for place in range(len(steps) - 2, -1, -1):
            if states:
                draw_from(states[place])
            found = run(back.body, *back.body.laid_out(found), *steps[place], *same)
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
