"""Torch's generators beside the default ones: a call draws from them before its graph.

A copy of the generator draws, as the sources of the graph's inputs are read, so that nothing has
moved where a guard fails. After the graph the generator gets the state that the copy came to. So
a graph holds no generators, and any backend gives their numbers. Where a call seeds a generator,
or sets its state, what it draws from then on depends on that alone: a new stage begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.making.made import Step
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import Known, Variable

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

Draw: TypeAlias = Callable[[torch.Generator], Any]


@dataclass(slots=True)
class Plan:
    """What is drawn or read from a generator in one stage, in order."""

    draws: list[Draw] = field(default_factory=list)

    def run(self, generator: torch.Generator) -> tuple[Any, ...]:
        """Move a generator; returns its last state, and what each draw gives."""
        found = [draw(generator) for draw in self.draws]
        return (generator.get_state(), *found)


# What a stage begins with; each is a source's function, of what comes before.


def of_generator(generator: torch.Generator, plan: Plan) -> tuple[Any, ...]:
    """Raises TypeError for what is no generator of its own of the CPU."""
    return plan.run(copy_of(generator))


def of_seed(seed: int, plan: Plan) -> tuple[Any, ...]:
    return plan.run(torch.Generator().manual_seed(seed))


def of_state(state: torch.Tensor, plan: Plan) -> tuple[Any, ...]:
    return plan.run(torch.Generator().set_state(state))


def copy_of(generator: torch.Generator) -> torch.Generator:
    """Another generator in the same state."""
    if not is_own(generator):
        raise TypeError("a generator of another device, or a default one")
    return torch.Generator().set_state(generator.get_state())


def is_own(generator: object) -> bool:
    """Whether it is a generator of the CPU, and not the default one."""
    if type(generator) is not torch.Generator or generator is torch.default_generator:
        return False
    return generator.device.type == "cpu"


@dataclass(slots=True)
class Stage:
    """A generator from where its state is known to begin."""

    source: Source
    """Of the last state, and of what is drawn."""
    plan: Plan
    copy: torch.Generator
    """It is where the program's is."""
    seed: Variable | None = None
    """What the program has seeded it with; None: that is read from the generator."""


@dataclass(slots=True)
class Record:
    """A generator in a trace."""

    owner: Known
    stage: Stage
    final: Known = field(default_factory=lambda: Known(None))
    """The state that the call leaves it in."""
    is_moved: bool = False


def begin(
    state: TraceState, function: Callable[[Any, Plan], Any], base: Source, copy: torch.Generator
) -> Stage:
    """A stage that `function` of what `base` gives goes through; `copy` is where it begins."""
    plan, name = Plan(), state.constants.name
    code = f"{name(function)}({base.code}, {name(plan)})"
    return Stage(Source(code, f"what is drawn from {base.text}", base), plan, copy)


def record_of(state: TraceState, owner: Known) -> Record:
    """What a trace knows of a generator. Raises TraceBreakError where it cannot draw ahead."""
    if state.scope.parent is not None or state.ambient.intercepts:
        raise TraceBreakError("GB0002", "a random generator inside a transform, or under a mode")
    if state.ambient.inference is not torch.is_inference_mode_enabled():
        raise TraceBreakError("GB0002", "a random generator where inference mode was switched")
    known = state.generators.get(id(owner.value))
    if known is None:
        known = Record(owner, _first_stage(state, owner))
        state.generators[id(owner.value)] = known
        state.world.kept.append(owner.value)
    return known


def _first_stage(state: TraceState, owner: Known) -> Stage:
    real = owner.value
    if not is_own(real):
        raise TraceBreakError("GB0009", "a random generator of another device, or of another class")
    if state.made.is_made(real):  # as each call makes it
        seed = real.initial_seed()
        source = state.constants.source(seed, f"the seed {seed}")
        made = begin(state, of_seed, source, torch.Generator().manual_seed(seed))
        made.seed = Known(seed)
        return made
    source = owner.source or state.constants.source(real, "a random generator")
    return begin(state, of_generator, source, copy_of(real))


def read(state: TraceState, record: Record, draw: Draw) -> Variable:
    """What a draw gives, as an input of the graph."""
    stage = record.stage
    try:
        value = draw(stage.copy)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise TraceBreakError("GB0008", f"numbers of a random generator: {error}") from error
    stage.plan.draws.append(draw)
    place = len(stage.plan.draws)
    return state.wrap(value, stage.source.element(place, str(place)))


def move(state: TraceState, record: Record, stage: Stage | None = None) -> None:
    """Note that the program has moved a generator, to where a stage begins or further on."""
    if stage is not None:
        record.stage = stage
    record.final.value = record.stage.copy
    record.final.source = record.stage.source.element(0, "0")
    if record.is_moved:
        return
    record.is_moved = True
    setter: Any = torch.Generator.set_state
    if state.made.is_made(record.owner.value):
        recipe = state.made.recipe(record.owner.value)
        recipe.then.append(Step(setter, (record.owner, record.final)))
    else:
        state.deferred.append((Known(setter), [record.owner, record.final], {}))
