"""What is Python text in a guard tree, but reads and compares what the native check has at hand.

The key of a dict may be an object of the call, as a parameter is in an optimizer's state; a
condition may call a function with values that were read already. The native check takes these
from its slots, where a Python function would walk to each of them again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from plait_bytecode_tracer.guards.guard import Guard
from plait_bytecode_tracer.guards.kinds import Kind
from plait_bytecode_tracer.guards.tree import GuardTree, Node
from plait_bytecode_tracer.shapes.readers import count
from plait_bytecode_tracer.values.sources import Access, Source
from plait_utils import dataclass

_HAS = re.compile(r"(?P<key>.+?) (?P<lacks>not )?in \{\}")
_ATTRIBUTE = re.compile(r"\{\}\.(?P<name>[A-Za-z]\w*) is (?P<value>True|False|None)")
_CALL = re.compile(r"(?P<function>_c\d+)\((?P<given>.+)\)")
_SINGLETONS = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class Contains:
    """Whether a dict has the object of this source as a key."""

    key: Source
    wanted: bool


@dataclass(frozen=True, slots=True)
class AttributeIs:
    """Whether the attribute of this name is this singleton."""

    name: str
    value: bool | None


@dataclass(frozen=True, slots=True)
class Holds:
    """Whether a function is true of the values of these sources."""

    function: object
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """The number that a tensor of one float will hold: a whole one, to which another is added."""

    read: functools.partial[object]
    """What reads it where it is no whole number below the limit, or somewhere else."""
    added: float
    limit: float


@dataclass(slots=True)
class Lookups:
    """The places of a tree's values, by the code that reads them."""

    constants: Mapping[str, object]
    _nodes: dict[str, tuple[int, int, Source]] = field(default_factory=dict)
    """The number of each node's root, its own number, and its source."""

    @staticmethod
    def of(tree: GuardTree, constants: Mapping[str, object]) -> Lookups:
        made = Lookups(constants)
        for place, root in enumerate(tree.roots):
            for node in root.walk():
                made._nodes[node.source.code] = place, len(made._nodes), node.source
        return made

    def key(self, node: Node) -> Source | None:
        """The key of a node that reads `base[key]`, where its value is known by then."""
        source = node.source
        if source.access is not Access.PYTHON or source.base is None:
            return None
        before, _, key = source.code.partition(f"{source.base.code}[")
        return self._known_before(source, key[:-1]) if not before and key[-1:] == "]" else None

    def counted(self, node: Node) -> Counted | None:
        """How a node reads a number that is counted up."""
        source = node.source
        if source.access is not Access.PYTHON or source.base is None:
            return None
        called, _, rest = source.code.partition("(")
        read = self.constants.get(called)
        if rest != f"{source.base.code})" or not isinstance(read, functools.partial):
            return None
        if read.func is not count:
            return None
        _, added, limit = read.args
        return Counted(read, added, float(limit))

    def condition(self, guard: Guard) -> Contains | AttributeIs | Holds | None:
        """What a Python condition asks; None where only Python can tell."""
        if guard.kind is not Kind.PYTHON or not isinstance(guard.expected, str):
            return None
        if len(guard.sources) > 1:  # checked last, without a value
            return None
        if guard.source is None:
            return self._held(guard.expected)
        if found := _ATTRIBUTE.fullmatch(guard.expected):
            return AttributeIs(found["name"], _SINGLETONS[found["value"]])
        if found := _HAS.fullmatch(guard.expected):
            key = self._known_before(guard.source, found["key"])
            return None if key is None else Contains(key, found["lacks"] is None)
        return None

    def _held(self, condition: str) -> Holds | None:
        found = _CALL.fullmatch(condition)
        if found is None or found["function"] not in self.constants:
            return None
        nodes = [self._nodes.get(code) for code in found["given"].split(", ")]
        sources = tuple(node[2] for node in nodes if node is not None)
        if len(sources) < len(nodes):
            return None
        return Holds(self.constants[found["function"]], sources)

    def _known_before(self, source: Source, code: str) -> Source | None:
        """The source with this code, if a visit has its value when it comes to `source`.

        Roots are visited in any order, each from its beginning.
        """
        found, here = self._nodes.get(code), self._nodes[source.code]
        return found[2] if found and found[0] == here[0] and found[1] < here[1] else None


def kept_for(tree: GuardTree, lookups: Lookups) -> Iterable[Source]:
    """The sources whose values the native check keeps for what it looks up."""
    for node in tree.nodes():
        if (key := lookups.key(node)) is not None:
            yield key
    for guard in tree.guards:
        yield from _sources(lookups.condition(guard))


def _sources(condition: Contains | AttributeIs | Holds | None) -> Sequence[Source]:
    match condition:
        case Contains(key):
            return (key,)
        case Holds(_, sources):
            return sources
    return ()
