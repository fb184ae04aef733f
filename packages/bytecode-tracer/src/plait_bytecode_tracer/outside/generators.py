"""Torch's generators beside the default ones: a call draws from them before its graph.

So a graph holds no generators, and any backend gives their numbers. A generator of the caller's
draws when all guards hold, as in eager: nobody else gets its numbers. The guards see empty tensors,
into which the numbers come then. Where the graph fails, the generator goes back to where the
program had come by then. Where a call seeds a generator, or sets its state, what it draws from then
on depends on that alone: a new stage begins, in which a copy draws before the guards, and the
generator gets the state that this came to after the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.failing import is_opaque
from plait_bytecode_tracer.making.made import Step
from plait_bytecode_tracer.outside.assumptions import guard_same
from plait_bytecode_tracer.values.sources import Access, Source
from plait_bytecode_tracer.values.variables import Known, Variable
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

Draw: TypeAlias = Callable[[torch.Generator], Any]


@dataclass(slots=True)
class Plan:
    """What is drawn or read from a generator in one stage, in order."""

    is_awaited: bool = False
    """Whether the generator itself draws, once all guards hold."""
    draws: list[Draw] = field(default_factory=list)
    stands: list[Draw] = field(default_factory=list)
    """What the guards see instead, of a generator that draws once they hold."""
    waiting: list[int] = field(default_factory=list)
    """The places of draws that are awaited."""

    def run(self, generator: torch.Generator) -> tuple[Any, ...]:
        """Move a generator; returns its last state, and what each draw gives."""
        found = [draw(generator) for draw in self.draws]
        return (generator.get_state(), *found)

    def add(self, draw: Draw, value: Any, *, moves: bool) -> int:
        """Another draw, which has given `value` in a trace; returns its place among the results."""
        if self.is_awaited and (moves or (self.waiting and isinstance(value, torch.Tensor))):
            form = tuple(value.shape), value.stride(), value.dtype
            self.stands.append(lambda _: torch.empty_strided(form[0], form[1], dtype=form[2]))
            self.waiting.append(len(self.draws))
        else:
            self.stands.append(draw)
        self.draws.append(draw)
        return len(self.draws)

    def move(self, generator: torch.Generator) -> None:
        """Draw what is awaited, for nobody."""
        for place in self.waiting:
            self.draws[place](generator)


# What a stage begins with; each is a source's function, of what comes before.


def of_generator(generator: torch.Generator, plan: Plan) -> tuple[Any, ...]:
    """What stands for the draws of a generator until they are made.

    Raises TypeError for what is no generator of its own of the CPU.
    """
    if not is_own(generator):
        raise TypeError("a generator of another device, or a default one")
    return (None, *[stand(generator) for stand in plan.stands])


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
    drawn: Stage
    """That in which the generator itself draws, or the first one of one that the call makes."""
    final: Known = field(default_factory=lambda: Known(None))
    """The state that the call leaves it in."""
    is_moved: bool = False

    @property
    def is_outside(self) -> bool:
        """Whether the caller may hold it."""
        return self.drawn.plan.is_awaited


def begin(
    state: TraceState, function: Callable[[Any, Plan], Any], base: Source, copy: torch.Generator
) -> Stage:
    """A stage that `function` of what `base` gives goes through; `copy` is where it begins."""
    plan, name = Plan(function is of_generator), state.constants.name
    code = f"{name(function)}({base.code}, {name(plan)})"
    text = f"what is drawn from {base.text}"
    return Stage(Source(code, text, base, Access.PYTHON, plan), plan, copy)


def plan_of(source: Source) -> Plan | None:
    """The plan by which a tensor is drawn that a source gives; None for another one."""
    found = None if source.base is None else source.base.key
    return found if isinstance(found, Plan) else None


def is_awaited(source: Source) -> bool:
    """Whether what a source gives has its values only when all guards hold."""
    plan = plan_of(source)
    return plan is not None and isinstance(source.key, int) and source.key - 1 in plan.waiting


def record_of(state: TraceState, owner: Known) -> Record:
    """What a trace knows of a generator. Raises TraceBreakError where it cannot draw ahead."""
    if state.scope.parent is not None or state.ambient.intercepts:
        raise TraceBreakError("GB0002", "a random generator inside a transform, or under a mode")
    if state.ambient.inference is not torch.is_inference_mode_enabled():
        raise TraceBreakError("GB0002", "a random generator where inference mode was switched")
    known = state.generators.get(id(owner.value))
    if known is None:
        _require_alone(state)
        stage = _first_stage(state, owner)
        known = Record(owner, stage, stage)
        _guard_apart(state, known)
        state.generators[id(owner.value)] = known
        state.world.kept.append(owner.value)
        return known
    source, first = owner.source, known.owner.source
    if source is not None and first is not None and source.code != first.code:
        guard_same(state, source, first)
    return known


def _guard_apart(state: TraceState, record: Record) -> None:
    """Guard that a generator from outside is none of the others."""
    new = record.drawn.source.base
    for other in state.generators.values():
        old = other.drawn.source.base
        if new is None or old is None or not (record.is_outside and other.is_outside):
            continue
        text = f"{new.text} is not {old.text}"
        state.guard(None, f"{new.code} is not {old.code}", text)


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


def _require_alone(state: TraceState) -> None:
    """Break where an operator that is not torch's own may have drawn from a generator before."""
    if any(is_opaque(node.target) for node in state.graph.nodes):
        raise TraceBreakError("GB0002", "a random generator after an operator that may draw")


def read(state: TraceState, record: Record, draw: Draw, *, moves: bool = False) -> Variable:
    """What a draw gives, as an input of the graph; `moves`: whether it moves the generator."""
    _require_alone(state)
    stage = record.stage
    try:
        value = draw(stage.copy)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise TraceBreakError("GB0008", f"numbers of a random generator: {error}") from error
    place = stage.plan.add(draw, value, moves=moves)
    return state.wrap(value, stage.source.element(place, str(place)))


def move(state: TraceState, record: Record, stage: Stage | None = None) -> None:
    """Note that the program has moved a generator, to where a stage begins or further on."""
    if stage is not None:
        record.stage = stage
    if record.stage.plan.is_awaited:
        return  # it has moved by itself
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
