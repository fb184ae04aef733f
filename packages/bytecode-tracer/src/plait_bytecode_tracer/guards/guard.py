"""What a trace assumed, as data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace

from plait_bytecode_tracer.guards.kinds import (
    Distinct,
    Kind,
    Mode,
    Relation,
    StoragePattern,
    TensorValue,
)
from plait_bytecode_tracer.values.sources import Constants, Source


@dataclass(frozen=True, slots=True)
class Guard:
    """One assumption: its kind, its source, and the user's line that needed it."""

    source: Source | None
    kind: Kind
    expected: object
    text: str
    line: str

    def __str__(self) -> str:
        return f"{self.text}  (needed by {self.line})"

    @property
    def sources(self) -> tuple[Source, ...]:
        """All that the guard reads."""
        first = () if self.source is None else (self.source,)
        if self.kind is Kind.IDENTITY:  # of any object, which may notice what it is asked
            return first
        if isinstance(self.expected, Source):
            return (*first, self.expected)
        if isinstance(self.expected, StoragePattern | TensorValue | Relation | Distinct):
            return self.expected.sources
        return first


_ALONE = frozenset(
    {
        *(Kind.IDENTITY, Kind.TYPE, Kind.EQUAL, Kind.LENGTH, Kind.KEYS, Kind.METHOD),
        *(Kind.FUNCTION, Kind.TENSOR, Kind.ARRAY),
    }
)
"""The kinds of which a source has one guard."""


@dataclass(slots=True)
class GuardSet:
    """Guards in the order in which they were needed, each once."""

    constants: Constants
    guards: dict[tuple[str, Kind, Hashable], Guard] = field(default_factory=dict)

    def require(
        self,
        source: Source | None,
        kind: Kind,
        expected: object,
        text: str,
        line: Callable[[], str],
    ) -> None:
        """Add a guard, unless it is there; `line` tells the user's line, for a new one."""
        key = (source.code if source else "", kind, _discriminator(kind, expected))
        if key not in self.guards:
            self.guards[key] = Guard(source, kind, expected, text, line())

    def fixes(self, source: Source) -> bool:
        """Whether a guard says which value a source has."""
        return any((source.code, kind, None) in self.guards for kind in (Kind.IDENTITY, Kind.EQUAL))

    def find(self, source: Source, kind: Kind) -> Guard:
        """The guard of this kind that a source has."""
        return self.guards[source.code, kind, None]

    def replace(self, source: Source, kind: Kind, expected: object) -> None:
        """Assume more of a source than the guard of this kind that it has."""
        key = (source.code, kind, _discriminator(kind, expected))
        self.guards[key] = replace(self.guards[key], expected=expected)

    def __iter__(self) -> Iterator[Guard]:
        return iter(self.guards.values())


def _discriminator(kind: Kind, expected: object) -> Hashable:
    """What tells apart two guards of one kind on one source that can both hold."""
    if kind in _ALONE:
        return None
    if isinstance(expected, Source):
        return expected.code
    if isinstance(expected, Distinct):
        return tuple(source.code for source in expected.sources)
    if isinstance(expected, TensorValue):
        return expected.key
    if isinstance(expected, Relation):
        return expected.key()
    if isinstance(expected, Mode):
        return id(expected.function)
    if kind is Kind.CLASS_ATTRIBUTE and isinstance(expected, tuple):
        return str(expected[0])
    if kind in (Kind.PYTHON, Kind.NO_ATTRIBUTE, Kind.LACKS, Kind.HAS):
        return repr(expected)
    return None
