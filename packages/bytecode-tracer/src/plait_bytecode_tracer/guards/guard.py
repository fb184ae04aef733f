"""What a trace assumed, as data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import field, replace

from plait_bytecode_tracer.guards.exact import exact_key
from plait_bytecode_tracer.guards.kinds import (
    Distinct,
    Kind,
    Mode,
    Relation,
    StoragePattern,
    TensorValue,
)
from plait_bytecode_tracer.values.sources import Constants, Source
from plait_utils import dataclass


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
        if self.kind in _OF_ONE:  # what others expect may be any object
            return first
        if isinstance(self.expected, Source):
            return (*first, self.expected)
        if isinstance(self.expected, _SEVERAL):
            return self.expected.sources
        return first


_SEVERAL = (StoragePattern, TensorValue, Relation, Distinct)
_OF_ONE = frozenset(Kind) - {
    *(Kind.SAME_OBJECT, Kind.STORAGE_PATTERN, Kind.TENSOR_VALUE, Kind.RELATION, Kind.DISTINCT),
}
"""The kinds that read their own source and nothing else."""
_ALONE = frozenset(
    {
        *(Kind.IDENTITY, Kind.TYPE, Kind.EQUAL, Kind.LENGTH, Kind.KEYS, Kind.METHOD),
        *(Kind.FUNCTION, Kind.TENSOR, Kind.ARRAY),
    }
)
"""The kinds of which a source has one guard."""
_BY_TEXT = frozenset({Kind.PYTHON, Kind.NO_ATTRIBUTE})
"""The kinds that their own text tells apart."""
_BY_KEY = frozenset({Kind.LACKS, Kind.HAS})
"""The kinds that a key of a dict tells apart; two classes may have one name."""


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
    if kind is Kind.CLASS_ATTRIBUTE and isinstance(expected, tuple):
        return str(expected[0])
    if kind in _BY_TEXT:
        return repr(expected)
    if kind in _BY_KEY:
        return exact_key(expected)
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
    return None
