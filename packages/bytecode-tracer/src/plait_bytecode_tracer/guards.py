"""What a trace assumed, as checks in generated code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from plait_bytecode_tracer.sources import Constants, Source


@dataclass(frozen=True, slots=True)
class Guard:
    """One assumption: a condition over a source, and the user's line that needed it."""

    source: Source | None
    condition: str
    """Python text; `{}` stands for the source."""
    text: str
    line: str

    def __str__(self) -> str:
        return f"{self.text}  (needed by {self.line})"


@dataclass(slots=True)
class GuardSet:
    """Guards in the order in which they were needed, each once."""

    constants: Constants
    guards: dict[tuple[str, str], Guard] = field(default_factory=dict)

    def add(self, source: Source | None, condition: str, text: str, line: str) -> None:
        key = (source.code if source else "", condition)
        if key not in self.guards:
            self.guards[key] = Guard(source, condition, text, line)

    def __iter__(self) -> Iterator[Guard]:
        return iter(self.guards.values())


@dataclass(slots=True)
class GuardWriter:
    """Writes guard checks that read each shared part of the sources once."""

    lines: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)

    def value(self, source: Source) -> str:
        """A local variable that holds the source's value."""
        known = self.named.get(source.code)
        if known is not None:
            return known
        if source.base is None:
            self.named[source.code] = source.code
            return source.code
        base = self.value(source.base)
        text = source.code.replace(source.base.code, base, 1)
        if not source.code.startswith(source.base.code):  # the base is an argument of a call
            called, _, rest = source.code.partition(f"({source.base.code}")
            text = f"{called}({base}{rest}"
        name = f"_v{len(self.named)}"
        self.lines.append(f"{name} = {text}")
        self.named[source.code] = name
        return name

    def check(self, guard: Guard, number: int, miss: str) -> None:
        """Leave with `miss` unless the guard holds."""
        value = "" if guard.source is None else self.value(guard.source)
        condition = guard.condition.replace("{}", value)
        self.lines.append(f"if not ({condition}): return {miss.replace('#', str(number))}")
