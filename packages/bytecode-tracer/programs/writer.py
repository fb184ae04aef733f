"""Draws a program from the grammar."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from programs.grammar import EXPRESSIONS, GROWING, PARAMETERS, PRELUDE, STATEMENTS

MAX_DEPTH = 3
"""How deep blocks and expressions nest."""
MAX_STATEMENTS = 24
"""Of a program, with those in its blocks."""

_PLACEHOLDER = re.compile(r"<([A-Z])([!=+@#]?)>")
_BLOCK = re.compile(r"^( *)<(block|body)>$")

Choose = Callable[[tuple[str, ...]], str]


@dataclass(slots=True)
class Scope:
    """The variables in scope, by type, and those that may be assigned here."""

    variables: dict[str, tuple[str, ...]]
    assignable: frozenset[str]
    loops: bool = False
    """Whether it is the block of a loop."""

    def bind(self, name: str, kind: str) -> None:
        known = self.variables.get(kind, ())
        if name not in known:
            self.variables[kind] = (*known, name)
        self.assignable |= {name}

    def owned(self, kind: str) -> tuple[str, ...]:
        """Variables of a type that may be assigned."""
        return tuple(n for n in self.variables.get(kind, ()) if n in self.assignable)

    def inner(self) -> Scope:
        return Scope(dict(self.variables), self.assignable, self.loops)


@dataclass(slots=True)
class Filling:
    """A statement that is being written."""

    scope: Scope
    """Where the statement stands."""
    inner: Scope
    """What its own expressions and blocks see."""
    depth: int
    bound: list[tuple[str, str]] = field(default_factory=list)
    """Names, with types, that are in scope after it."""
    counter: str = ""


@functools.cache
def _parts(template: str) -> tuple[str, ...]:
    """Text, type, use, text, type, use, and so on to a last text."""
    return tuple(_PLACEHOLDER.split(template))


@functools.cache
def _needs(template: str) -> frozenset[str]:
    """Types of which the template names a variable that must exist."""
    parts = _parts(template)
    return frozenset(k for k, use in zip(parts[1::3], parts[2::3], strict=True) if use == "!")


@functools.cache
def _leaves(kind: str) -> tuple[str, ...]:
    """Expressions of a type that hold no further ones."""
    found = tuple(e for e in EXPRESSIONS[kind] if all(use == "!" for use in _parts(e)[2::3]))
    return found or EXPRESSIONS[kind]


@dataclass(slots=True)
class Writer:
    """Writes one program, asking `choose` at each turn."""

    choose: Choose
    count: dict[str, int] = field(default_factory=dict)
    left: int = MAX_STATEMENTS

    def program(self) -> str:
        """The text of a module with a function `program`."""
        variables: dict[str, tuple[str, ...]] = {}
        for name, kind in PARAMETERS.items():
            variables[kind] = (*variables.get(kind, ()), name)
        scope = Scope(variables, frozenset(PARAMETERS))
        lines = self._statements(scope, 0, int(self.choose(("2", "4", "6", "9"))))
        result = ", ".join(self._expression(k, scope, 1) for k in ("T", "I", "P", "T"))
        body = [*lines, f"return {result}"]
        text = "\n".join(f"    {line}" if line else "" for line in body)
        return f"{PRELUDE}def program({', '.join(PARAMETERS)}):\n{text}\n"

    def _statements(self, scope: Scope, depth: int, count: int) -> list[str]:
        lines: list[str] = []
        for _ in range(count):
            if self.left <= 0:
                break
            self.left -= 1
            lines += self._statement(scope, depth)
        return lines or ["pass"]

    def _statement(self, scope: Scope, depth: int) -> list[str]:
        nests = depth < MAX_DEPTH
        fitting = _fitting(STATEMENTS, frozenset(scope.variables), nests)
        fitting = tuple(e for e in fitting if "@>" not in e or scope.owned(_parts(e)[1]))
        template = self.choose(_without_growth(fitting) if scope.loops else fitting)
        made = Filling(scope, scope.inner(), depth)
        made.inner.loops = scope.loops or template.startswith(("for", "<I#>"))
        lines: list[str] = []
        for line in template.split("\n"):
            block = _BLOCK.match(line)
            if block is None:
                lines.append(self._fill(line, made))
                continue
            if block[2] == "body":
                written = self._body(made)
            else:
                count = int(self.choose(("1", "2")))
                written = self._statements(made.inner.inner(), depth + 1, count)
            lines += [block[1] + each if each else "" for each in written]
        for name, kind in made.bound:
            scope.bind(name, kind)
        return lines

    def _body(self, made: Filling) -> list[str]:
        """Statements of a function: what they assign is its own, but for one nonlocal name."""
        own = made.inner.inner()
        functions = made.scope.variables.get("C", ())
        shared = self.choose(("", *sorted(made.scope.assignable - set(functions))))
        own.assignable = frozenset({shared} if shared else ())
        made.inner.variables = own.variables
        made.inner.assignable = own.assignable
        first = [f"nonlocal {shared}"] if shared else []
        count = int(self.choose(("1", "2", "3")))
        return [*first, *self._statements(own, made.depth + 1, count)]

    def _fill(self, line: str, made: Filling) -> str:
        parts = _parts(line)
        text = [parts[0]]
        opened: list[tuple[str, str]] = []
        for kind, use, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            match use:
                case "+":
                    written = self._new(kind)
                    is_function = line.startswith("def ") and kind == "C"
                    (made.bound if is_function else opened).append((written, kind))
                case "#":
                    written = made.counter = made.counter or self._new(kind)
                case "=":
                    # A function gets a name of its own, lest it come to call itself.
                    owned = () if kind == "C" else made.scope.owned(kind)
                    written = self.choose((*owned, "")) or self._new(kind)
                    made.bound.append((written, kind))
                case "!":
                    written = self.choose(made.inner.variables[kind])
                case "@":
                    written = self.choose(made.scope.owned(kind))
                case _:
                    written = self._expression(kind, made.inner, 0 if made.depth < 2 else 1)
                    written = f"({written})" if after[:1] in (".", "[") else written
            text += [written, after]
        for name, kind in opened:
            made.inner.bind(name, kind)
        return "".join(text)

    def _expression(self, kind: str, scope: Scope, depth: int) -> str:
        table = EXPRESSIONS[kind] if depth < MAX_DEPTH - 1 else _leaves(kind)
        template = self.choose(_fitting(table, frozenset(scope.variables), True))
        parts = _parts(template)
        text = [parts[0]]
        for inner, use, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            if use == "!":
                text.append(self.choose(scope.variables[inner]))
            else:
                written = self._expression(inner, scope, depth + 1)
                text.append(written if written.isidentifier() else f"({written})")
            text.append(after)
        return "".join(text)

    def _new(self, kind: str) -> str:
        number = self.count[kind] = self.count.get(kind, 0) + 1
        return f"{kind.lower()}{number}"


@functools.cache
def _fitting(table: tuple[str, ...], kinds: frozenset[str], nests: bool) -> tuple[str, ...]:
    """The templates whose variables exist."""
    return tuple(e for e in table if _needs(e) <= kinds and (nests or "\n" not in e))


@functools.cache
def _without_growth(table: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(e for e in table if not any(mark in e for mark in GROWING))


@st.composite
def programs(draw: st.DrawFn) -> str:
    """The text of a random program."""
    return Writer(lambda options: draw(st.sampled_from(options))).program()
