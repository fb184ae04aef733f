"""What a pass is: a named rewrite of a private copy of the graph."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from plait_fx_passes.aliasing import storage_root
from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.errors import PassError
from plait_fx_passes.verifier import equal_values, recompute
from plait_utils import dataclass


@dataclass(slots=True)
class Fuel:
    """How many more rewrites may be made; None for any number.

    Every elementary rewrite of every pass takes one, so the rewrite that breaks a program can be
    found by bisection over the amount. ``end`` is where the running pass goes on for ever.
    """

    left: int | None = None
    used: int = 0
    end: int | None = None

    def take(self, node: fx.Node | None = None) -> bool:
        """Use up one rewrite; False if there is none left.

        Raises PassError where a pass makes far more rewrites than its graph has nodes.
        """
        if self.left is not None and self.used >= self.left:
            return False
        if self.end is not None and self.used >= self.end:
            where = "" if node is None else f", the last at %{node.name}"
            raise PassError(f"it goes on for ever: {self.used} rewrites{where}")
        self.used += 1
        return True

    def bound(self, nodes: int) -> None:
        """Let a pass over so many nodes begin, which makes a few rewrites of each."""
        self.end = self.used + _REWRITES_A_NODE * (nodes + 10)


_REWRITES_A_NODE = 100


_ABSOLUTE = frozenset(
    {torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default}
)
"""What counts places from where the memory of its operand begins."""
_BY_VECTORS = torch.ops.aten.native_dropout.default
"""Draws on a GPU by where the memory of its operand begins."""


def _begins_at(node: fx.Node) -> object:
    value = node.meta["val"]
    return value.storage_offset() if isinstance(value, torch.Tensor) else None


def _counts_places(node: fx.Node) -> bool:
    if node.target is _BY_VECTORS:
        return bool(node.meta["val"][0].device.type != "cpu")
    return node.target in _ABSOLUTE


@dataclass(slots=True)
class Memory:
    """Which results of the graph look at which node's memory, kept true while nodes are replaced.

    The caller owns the tensors it gets: a rewrite that would let two results, or a result and an
    input, share memory is not allowed, however equal the values are. Nor is one that lets a tensor
    begin elsewhere in its memory, if the graph ``counts_places`` there.
    """

    by_root: dict[fx.Node, set[int]]
    copied_back: frozenset[int]
    written: frozenset[fx.Node]
    counts_places: bool

    @classmethod
    def of(cls, graph: AtenGraph) -> Memory:
        by_root: dict[fx.Node, set[int]] = {}
        for position, node in enumerate(graph.results):
            by_root.setdefault(storage_root(node), set()).add(position)
        placeholders = graph.placeholders
        return cls(
            by_root,
            frozenset(mutation.result for mutation in graph.mutations),
            frozenset(placeholders[mutation.input] for mutation in graph.mutations),
            any(map(_counts_places, graph.graph.nodes)),
        )

    def remembered(self) -> dict[fx.Node, set[int]]:
        """A copy of ``by_root``."""
        return {root: set(positions) for root, positions in self.by_root.items()}

    def may_replace(self, node: fx.Node, by: fx.Node) -> bool:
        """Whether ``by`` can stand wherever ``node`` does; remembers it if so."""
        if isinstance(node.meta.get("val"), tuple):  # its parts are memory of their own
            return not any(part in self.by_root for part in node.users)
        if self.counts_places and _begins_at(node) != _begins_at(by):
            return False
        old, new = storage_root(node), storage_root(by)
        positions = self.by_root.get(old)
        if old is new or positions is None:
            return True
        # A view deep inside its root's memory may be replaced when no result looks through it,
        # but finding that out costs a walk over its users; treat the root as one.
        if new.op == "placeholder":
            if new in self.written or not positions <= self.copied_back:
                return False
        elif new in self.by_root and not (
            positions <= self.copied_back or self.by_root[new] <= self.copied_back
        ):
            return False
        if old is node:
            self.by_root.setdefault(new, set()).update(self.by_root.pop(old))
        else:
            self.by_root.setdefault(new, set()).update(positions)
        return True


@dataclass(slots=True)
class PassContext:
    """What a running pass may use: the private copy, its memory facts, fake values and fuel."""

    aten: AtenGraph
    memory: Memory
    fake_mode: FakeTensorMode | None
    fuel: Fuel = field(default_factory=Fuel)
    running: str = ""
    """The name of the pass."""
    rewrites: int = 0
    matches: Counter[str] = field(default_factory=Counter)
    """How often each rewrite rule of the running pass applied."""

    @property
    def graph(self) -> fx.Graph:
        return self.aten.graph

    def fake(self, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The fake value of a call that makes a new contiguous tensor."""
        assert self.fake_mode is not None, "a graph with tensors has fake ones"
        with self.fake_mode:
            return torch.empty(size, dtype=dtype, device=device)

    def replace(self, node: fx.Node, by: fx.Node) -> bool:
        """Let all users of ``node`` use ``by``, if memory and fuel allow; the node stays, dead."""
        return self.replace_all((node,), (by,))

    def replace_all(self, nodes: Sequence[fx.Node], by: Sequence[fx.Node]) -> bool:
        """Let all users of each node use another, all or none of them, as one rewrite."""
        pairs = list(zip(nodes, by, strict=True))
        if not all(node.users for node in nodes):
            return False
        known = self.memory.by_root if len(pairs) == 1 else self.memory.remembered()
        allowed = all(self.memory.may_replace(*pair) for pair in pairs)
        if not allowed or not self.fuel.take(nodes[0]):
            self.memory.by_root = known
            return False
        for node, other in pairs:
            node.replace_all_uses_with(other)
        self.rewrites += 1
        return True

    def erase(self, node: fx.Node) -> bool:
        """Remove a node without users, if fuel allows."""
        if not self.fuel.take(node):
            return False
        self.graph.erase_node(node)
        self.rewrites += 1
        return True

    def move(self, node: fx.Node, before: fx.Node) -> fx.Node:
        """Let a call stand before another node, under its name: as one made anew, so that what
        was recorded stays in its order and reports tell of the move. Takes no fuel."""
        with self.graph.inserting_before(before):
            made = self.graph.create_node(node.op, node.target, node.args, node.kwargs)
        made.meta = {**node.meta, **made_by(self.running, node)}
        if node in self.memory.by_root:
            self.memory.by_root[made] = self.memory.by_root.pop(node)
        node.replace_all_uses_with(made)
        self.graph.erase_node(node)
        made.name = node.name
        return made

    def update(self, changed: Iterable[fx.Node]) -> int:
        """Compute the fake values of changed calls anew, and of what depends on them, as far as
        values change: all else is left. Returns how many were computed.

        Raises what an operator raises on fake tensors.
        """
        assert self.fake_mode is not None, "a graph with tensors has fake ones"
        waiting = [node for node in changed if node.op == "call_function"]
        heapq.heapify(waiting)  # in the order of the graph, so that each is computed once
        count, last = 0, None
        while waiting:
            node = heapq.heappop(waiting)
            if node is last:
                continue
            last, count = node, count + 1
            value = recompute(self.fake_mode, node)
            if not equal_values(value, node.meta.get("val")):
                node.meta["val"] = value
                for user in node.users:
                    if user.op == "call_function":
                        heapq.heappush(waiting, user)
        return count


@dataclass(frozen=True, slots=True)
class Pass:
    """A named graph-to-graph rewrite.

    ``rewrite`` changes the context's private graph in place; calling the pass copies first, so
    its argument is never changed.
    """

    name: str
    rewrite: Callable[[PassContext], None]
    doc: str = ""

    @property
    def is_own(self) -> bool:
        """Whether it is of this package, whose passes and rules check what they make."""
        module = getattr(self.rewrite, "__module__", None)
        return isinstance(module, str) and module.startswith(f"{_PACKAGE}.")

    def __call__(self, graph: AtenGraph) -> AtenGraph:
        """The graph after this pass alone, as `run_passes` runs it."""
        from plait_fx_passes.passes.manager import run_passes

        return run_passes(graph, (self,))


_PACKAGE = __name__.partition(".")[0]


def made_by(rule: str, *nodes: fx.Node) -> dict[str, object]:
    """What nodes of a rewrite say in their ``meta``: which rule made them, and of which nodes."""
    return {"rule": rule, "made_of": tuple(node.name for node in nodes)}


def names(passes: Iterable[Pass]) -> tuple[str, ...]:
    """The passes' names, in order."""
    return tuple(each.name for each in passes)
