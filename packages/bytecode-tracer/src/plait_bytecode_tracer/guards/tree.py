"""Guards and the values to read, as one tree of sources in the order of checking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from plait_bytecode_tracer.guards.guard import Guard
from plait_bytecode_tracer.guards.kinds import Kind
from plait_bytecode_tracer.values.sources import Source
from plait_utils import dataclass


@dataclass(slots=True)
class Node:
    """A source, the numbers of its guards, and what is read from it."""

    source: Source
    guards: list[int] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    output: int | None = None
    """The position among the values to read."""

    def walk(self) -> Iterator[Node]:
        """This node and all below it, parents first."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)


@dataclass(frozen=True, slots=True)
class GuardTree:
    """What is checked and read at a call.

    The order of checking, which both renderers keep: modes; then the tree, where the
    guards of a node come before its children; then guards over several sources and
    conditions over none. `guards` is in this order.
    """

    guards: tuple[Guard, ...]
    modes: tuple[int, ...]
    roots: tuple[Node, ...]
    last: tuple[int, ...]
    outputs: tuple[Source, ...]
    """The values to read, each once."""

    def nodes(self) -> Iterator[Node]:
        """All nodes, parents first."""
        for root in self.roots:
            yield from root.walk()

    def first_guard(self, node: Node) -> int:
        """The guard that fails where the node cannot be read: the first that needs it.

        The number of guards where only the values to read need it, or guards over
        several sources.
        """
        return next((n.guards[0] for n in node.walk() if n.guards), len(self.guards))


def guard_tree(guards: Iterable[Guard], outputs: Sequence[Source]) -> GuardTree:
    """The tree of some guards, and of sources whose values are wanted too.

    Each source of `outputs` may stand there more than once.
    """
    modes: list[Guard] = []
    last: list[Guard] = []
    held: dict[str, list[Guard]] = {}
    growing = _Growing()
    for guard in guards:
        for source in guard.sources:
            growing.node(source)
        if guard.kind is Kind.MODE:
            modes.append(guard)
        elif guard.source is None or len(guard.sources) > 1:
            last.append(guard)
        else:
            held.setdefault(guard.source.code, []).append(guard)
    wanted: dict[str, Source] = {source.code: source for source in outputs}
    for position, source in enumerate(wanted.values()):
        growing.node(source).output = position
    ordered = list(modes)
    for root in growing.roots:
        for node in root.walk():
            for guard in held.get(node.source.code, ()):
                node.guards.append(len(ordered))
                ordered.append(guard)
    first_last = len(ordered)
    ordered += last
    return GuardTree(
        tuple(ordered),
        tuple(range(len(modes))),
        tuple(growing.roots),
        tuple(range(first_last, len(ordered))),
        tuple(wanted.values()),
    )


@dataclass(slots=True)
class _Growing:
    roots: list[Node] = field(default_factory=list)
    by_code: dict[str, Node] = field(default_factory=dict)

    def node(self, source: Source) -> Node:
        known = self.by_code.get(source.code)
        if known is not None:
            return known
        siblings = self.roots if source.base is None else self.node(source.base).children
        made = Node(source)
        self.by_code[source.code] = made
        siblings.append(made)
        return made
