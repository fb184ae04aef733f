"""Python's random generators: what a call draws from one of the caller's is known beforehand.

The guards look at the next numbers of a generator without moving it; the number is then an
input like others. After the graph the generator is moved as the program would have.
"""

from __future__ import annotations

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


@dataclass(slots=True)
class Generator:
    """A generator of the caller's in a trace."""

    source: Source
    """Of its next draws."""
    plan: Plan
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
    """What a call will draw. Raises TypeError for what only looks like a generator."""
    if not is_plain(generator):
        raise TypeError("a generator with methods of its own")
    ahead = copy_of(generator)
    return tuple(getattr(ahead, name)(*args) for name, args in plan.draws)


def move(generator: random.Random, plan: Plan) -> None:
    """Leave a generator as the program does."""
    if plan.last is not None:
        generator.setstate(plan.last)
        return
    for name, args in plan.draws:
        getattr(generator, name)(*args)


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
