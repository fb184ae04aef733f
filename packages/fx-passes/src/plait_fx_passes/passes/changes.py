"""What each pass did to a graph: seconds, matches, and the calls that came and went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from torch import fx
from torch.fx.node import Argument, Target

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.passes.manager import PassRecord
from plait_fx_passes.printer import format_call
from plait_utils import dataclass
from plait_utils.cached import cached_property

State: TypeAlias = "tuple[Target, tuple[Argument, ...], Mapping[str, Argument], object]"
"""Target, arguments and fake value of a node; passes give it others, and change none of these."""


def _state(node: fx.Node) -> State:
    return node.target, node.args, node.kwargs, node.meta.get("val")


def _stands(node: fx.Node, state: State) -> bool:
    """Whether a node is as it was, to the very objects: to compare symbolic sizes notes that."""
    target, args, kwargs, value = state
    return (
        node.args is args
        and node.target is target
        and node.kwargs is kwargs
        and node.meta.get("val") is value
    )


@dataclass(frozen=True, slots=True)
class NodeText:
    """A node as it stood between two passes, to be written.

    ``made`` says which rule made it, and of which nodes; None of what was recorded.
    """

    node: fx.Node
    state: State
    made: tuple[str, tuple[str, ...]] | None = None

    @property
    def target(self) -> Target | None:
        """What it calls."""
        return self.state[0] if self.node.op == "call_function" else None

    def __str__(self) -> str:
        text = format_call(self.node.name, self.node.op, *self.state)
        if self.made is None:
            return text
        rule, nodes = self.made
        return f"{text}  # by {rule} of {', '.join(f'%{name}' for name in nodes)}"


@dataclass(frozen=True)
class GraphDiff:
    """The nodes of a graph that a pass took away or changed, and what stands there instead."""

    before: tuple[NodeText, ...] = ()
    after: tuple[NodeText, ...] = ()

    @cached_property
    def calls(self) -> Mapping[str, int]:
        """By how many calls of each operator the graph grew or, below 0, shrank."""
        count = Counter(each.target for each in self.after)
        count.subtract(each.target for each in self.before)
        return {str(each): n for each, n in count.items() if n and each is not None}

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """One for each node, as `print_aten` writes it, after "-" or "+"; with the rule that made
        it. Written when first asked for."""
        gone, came = (dict.fromkeys(map(str, each)) for each in (self.before, self.after))
        taken = [f"- {line}" for line in gone if line not in came]
        return (*taken, *(f"+ {line}" for line in came if line not in gone))

    def __bool__(self) -> bool:
        return bool(self.before or self.after)


@dataclass(frozen=True, slots=True)
class PassChange:
    """What one pass did.

    Attributes:
        seconds: it took so long, its checks apart.
        rewrites: how many elementary ones it counted.
        matches: how often each rule of a pass of rules applied.
        diff: the nodes that changed.
    """

    name: str
    seconds: float
    rewrites: int
    matches: Mapping[str, int]
    diff: GraphDiff

    def __str__(self) -> str:
        noun = "rewrite" if self.rewrites == 1 else "rewrites"
        head = f"{self.name} ({self.seconds * 1000:.2f} ms): {self.rewrites} {noun}"
        told = [f"{rule} ×{count}" for rule, count in self.matches.items()]
        return "\n    ".join([", ".join([head, *told]), *self.diff.lines])


class PassLog:
    """An observer of `run_passes` that keeps what each pass did, in ``changes``, and prints it.

    It looks at each node once before the first pass and after each that changed something; lines
    are written when they are read.
    """

    def __init__(self) -> None:
        self.changes: list[PassChange] = []
        self._known: dict[fx.Node, State] = {}

    def begin(self, graph: AtenGraph) -> None:
        """Look at the graph before the first pass."""
        self._known = {node: _state(node) for node in graph.graph.nodes}

    def __call__(self, record: PassRecord) -> None:
        """Note what a pass did."""
        changed = record.rewrites or not record.is_own
        diff = self._compared(record.graph) if changed else GraphDiff()
        matches = dict(record.matches)
        made = PassChange(record.name, record.seconds, record.rewrites, matches, diff)
        self.changes.append(made)

    def _compared(self, graph: AtenGraph) -> GraphDiff:
        known = self._known
        now: dict[fx.Node, State] = {}
        after: list[NodeText] = []
        for node in graph.graph.nodes:
            old = known.get(node)
            if old is not None and _stands(node, old):
                now[node] = old
                continue
            now[node] = state = _state(node)
            made = (node.meta["rule"], node.meta["made_of"]) if "made_of" in node.meta else None
            after.append(NodeText(node, state, made))
        before = [NodeText(node, old) for node, old in known.items() if now.get(node) is not old]
        self._known = now
        return GraphDiff(tuple(before), tuple(after))

    def __str__(self) -> str:
        return "\n".join(str(each) for each in self.changes if each.rewrites or each.diff)
