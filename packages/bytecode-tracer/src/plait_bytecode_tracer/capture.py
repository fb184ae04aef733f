"""What a trace gives: a graph, its guards, and what Python does around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from types import CodeType
from typing import TYPE_CHECKING, Any

from torch import fx

from plait_bytecode_tracer.guards import Guard, GuardTree, Reads, guard_tree
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_bytecode_tracer.breaking.breaks import Continuation
    from plait_bytecode_tracer.errors import GraphBreak
    from plait_bytecode_tracer.outside.graph_inputs import GraphInput
    from plait_bytecode_tracer.outside.seeds import Preparation
    from plait_bytecode_tracer.state import TraceState
    from plait_bytecode_tracer.values.sources import Source


class WholeCallEagerError(Exception):
    """The call must run as eager Python as a whole; says why."""

    def __init__(self, graph_break: GraphBreak, state: TraceState | None = None) -> None:
        super().__init__(graph_break.reason)
        self.graph_break = graph_break
        self.state = state
        """The trace as far as it came: while its guards hold, calls end here again."""


@dataclass(slots=True)
class Capture:
    """A traced call: a torch-level graph, and what Python does around it."""

    graph_module: fx.GraphModule
    inputs: tuple[GraphInput, ...]
    tree: GuardTree
    graph_break: GraphBreak | None
    continuation: Continuation | None
    state: TraceState = field(repr=False)
    body: tuple[str, ...] = field(repr=False, default=())
    """Python after the graph has run, up to the return."""
    reads: Reads = field(repr=False, default_factory=Reads)
    """What `body` reads from the call, by name."""
    is_plain_forward: bool = False
    """Whether it is a module's `forward`, with guards that a call of the module is no more."""
    preparation: Preparation | None = None
    """What sets random generators before the graph."""
    meanwhile: Callable[[], object] | None = field(repr=False, compare=False, default=None)
    """What a backend may call while it waits for a compiler, so that less is to be done after it;
    None once it has returned."""
    draft: tuple[GuardTree, CodeType] | None = field(repr=False, compare=False, default=None)
    """The Python of its entry, and the guards that this checks, where that was made meanwhile."""

    @property
    def given(self) -> tuple[Source, ...]:
        """What the graph's call is given: its inputs, and what is set before it."""
        prepare = self.preparation
        return self.sources if prepare is None else (*self.sources, *prepare.sources)

    @property
    def guards(self) -> tuple[Guard, ...]:
        """All that was assumed, in the order of checking."""
        return self.tree.guards

    @property
    def sources(self) -> tuple[Source, ...]:
        """How each placeholder is read from the call."""
        return tuple(graph_input.source for graph_input in self.inputs)

    @property
    def required(self) -> tuple[tuple[int, bool], ...]:
        """The places of inputs of which the call sets whether they need gradients, and to what."""
        nodes = [each.node for each in self.inputs]
        return tuple(
            (nodes.index(n), wanted) for n, (_, wanted) in self.state.derivatives.required.items()
        )

    def guard_rest(self) -> None:
        """Guard what a backend has assumed of symbolic sizes while it compiled."""
        symbols = self.state.symbols
        if symbols is not None and symbols.has_more():
            symbols.guard_rest()
            outputs = [*self.given, *self.reads.sources.values()]
            self.tree = guard_tree(self.state.guards, outputs)

    @property
    def example_inputs(self) -> tuple[Any, ...]:
        """The fake tensor of each placeholder; a SymInt or float of one that is a number."""
        return tuple(i.node.meta["val"] for i in self.inputs)
