"""Python's random generators: what a call draws from one of the caller's is known beforehand.

The guards look at the next numbers of a generator without moving it; the number is then an
input like others. Before the graph the generator is moved as the program would have: if it then
gives other numbers, another thread has got those, and the call runs as plain Python.
"""

from __future__ import annotations

import _random
import itertools
import operator
import random
from collections.abc import Iterable
from dataclasses import field
from typing import Any

from plait_bytecode_tracer.guards import Guard, Kind
from plait_bytecode_tracer.values.sources import Access, Source
from plait_utils import dataclass

UNDECIDED = "random numbers"
"""The key of random numbers among the values that a specialisation does not assume."""
MAX_DECIDED = 4
"""How many specialisations of a function may be chosen by random numbers."""


class _Drawn:
    """Marks the sources of what is drawn."""


DRAWN = _Drawn()


@dataclass(slots=True)
class Plan:
    """What a call does with a generator."""

    draws: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    """Methods and their arguments, as long as the generator's state is the caller's."""
    last: Any = None
    """The state that the call leaves it in, if it sets one."""

    def run(self, generator: random.Random) -> tuple[Any, ...]:
        """Draw."""
        return tuple(getattr(generator, name)(*args) for name, args in self.draws)


@dataclass(slots=True)
class Generator:
    """A generator of the caller's in a trace."""

    source: Source
    """Of its next draws."""
    plan: Plan
    real: random.Random
    copy: random.Random
    """It is where the program's is."""
    is_set: bool = False
    """Whether the program has set its state, so that its numbers are the same in each call."""


def is_plain(generator: object) -> bool:
    """Whether an object is a generator whose methods are the class's own."""
    return type(generator) is random.Random and vars(generator).keys() == {"gauss_next"}


def copy_of(generator: random.Random) -> random.Random:
    """Another generator in the same state."""
    made = random.Random.__new__(random.Random)
    made.setstate(generator.getstate())
    return made


def next_draws(generator: random.Random, plan: Plan) -> tuple[Any, ...]:
    """What a call will draw, and the state before.

    Raises TypeError for what only looks like a generator.
    """
    if not is_plain(generator):
        raise TypeError("a generator with methods of its own")
    state = generator.getstate()
    ahead = random.Random.__new__(random.Random)
    ahead.setstate(state)
    return (*plan.run(ahead), state)


def leave(generator: random.Random, plan: Plan) -> None:
    """Leave a generator in the state that the program sets, if it sets one."""
    if plan.last is not None:
        generator.setstate(plan.last)


class DrawnMeanwhileError(Exception):
    """Another thread has drawn the numbers that a call was to draw."""


@dataclass(frozen=True, slots=True)
class MovedNumbers:
    """A generator that has drawn before a graph."""

    generator: random.Random
    before: Any
    """Its state before."""
    plan: Plan

    def take_back(self) -> bool:
        """Give the generator its state from before, unless another thread has moved it since."""
        copy = random.Random.__new__(random.Random)
        copy.setstate(self.before)
        self.plan.run(copy)
        _, before, kept = self.before
        now = map(_random.Random.getstate, [self.generator])
        is_same = map(operator.eq, [_random.Random.getstate(copy)], now)
        found = itertools.compress([self.generator], is_same)
        # No instruction of Python's, at which another thread could go on, comes in between.
        if not [*map(_random.Random.setstate, found, [before])]:
            return False
        vars(self.generator)["gauss_next"] = kept
        return True


def drawing(code: str, base: Source) -> Source:
    """The source of a generator's next draws."""
    return Source(code, f"the next numbers of {base.text}", base, Access.PYTHON, DRAWN)


def is_drawn(source: Source) -> bool:
    """Whether a source gives a number that is drawn."""
    return source.base is not None and source.base.key is DRAWN


def assumes_draws(guards: Iterable[Guard]) -> bool:
    """Whether guards assume more of what is drawn than its type."""
    return any(
        guard.kind is not Kind.TYPE and any(map(is_drawn, guard.sources)) for guard in guards
    )
