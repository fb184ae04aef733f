"""A graph taken apart: what follows from its frozen inputs alone, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx

from plait_fx_passes.aliasing import storage_root
from plait_fx_passes.aten_graph import (
    AtenGraph,
    AttributeInput,
    Computed,
    ConstantInput,
    SyntheticBase,
    UserInput,
)
from plait_fx_passes.freezing.values import FrozenValues, computed_now
from plait_fx_passes.layouts import has_static_sizes, is_dense
from plait_fx_passes.passes.frozen import Constants
from plait_fx_passes.places import count_from_inputs
from plait_utils import dataclass


def can_freeze(graph: AtenGraph, index: int) -> bool:
    """Whether an input may be frozen: the program writes to none of its memory, and its elements
    fill a stretch of that."""
    value = graph.example_inputs[index]
    if not isinstance(value, torch.Tensor) or not isinstance(
        graph.inputs[index], (UserInput, AttributeInput)
    ):
        return False
    written = {each.input for each in graph.mutations} | set(graph.counted)
    written |= {each.input for each in graph.metadata_mutations}
    for group in graph.shared_inputs:
        if written.intersection(group):
            written.update(group)
    based = {each.of for each in graph.inputs if isinstance(each, SyntheticBase)}
    gives_gradients = graph.spent or graph.made_leaves or graph.adrift
    if index in written | based or gives_gradients:
        return False
    plain = value.layout is torch.strided and not value.is_inference()
    return plain and has_static_sizes(value) and is_dense(value) and value.numel() > 0


def with_frozen_attributes(graph: AtenGraph) -> AtenGraph:
    """The graph with the parameters and buffers of the traced module frozen."""
    places = [
        place
        for place, source in enumerate(graph.inputs)
        if isinstance(source, AttributeInput) and can_freeze(graph, place)
    ]
    return replace(graph, frozen=tuple(places))


@dataclass(frozen=True, slots=True)
class Frozen:
    """A graph in two parts.

    Attributes:
        program: what is left to compute in each call, of some inputs and of the held values: flat,
            with nothing around it.
        constants: what computes the held values.
        read: the inputs from which it does, as places in the whole graph.
        kept: the inputs that the program takes before the held values.
    """

    program: AtenGraph
    constants: fx.GraphModule
    read: tuple[int, ...]
    kept: tuple[int, ...]

    def runner(
        self,
        run: Callable[..., Sequence[torch.Tensor]],
        written: Callable[[], int] = lambda: 0,
    ) -> Callable[..., object]:
        """What runs the whole graph, given what runs the program.

        Values are computed anew, too, where what ``written`` returns is another number.
        """
        values = FrozenValues(self.constants, self.read, written)
        kept = self.kept

        def call(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
            return run(*[inputs[place] for place in kept], *values.of(inputs))

        return call

    def written(self, whole: Mapping[int, int]) -> dict[int, int]:
        """By result, the input that it is written to, as the program numbers its inputs."""
        return {result: self.kept.index(place) for result, place in whole.items()}


def split_frozen(graph: AtenGraph) -> Frozen | None:
    """The graph without what follows from its frozen inputs alone; None where nothing does.

    Views of frozen inputs and of held values stay with the program: they cost nothing.
    """
    parts = _Parts(graph)
    if not parts.held:
        return None
    fixed, read = parts.constants()
    kept = tuple(
        place for place, node in enumerate(graph.placeholders) if not parts.is_spared(node)
    )
    made = parts.program(kept)
    count = len(kept) + len(parts.held)
    inputs = tuple(UserInput(index) for index in range(count))
    outputs = tuple(Computed(index) for index in range(len(graph.results)))
    return Frozen(AtenGraph(made, inputs, outputs), fixed, read, kept)


def with_held_values(graph: AtenGraph) -> AtenGraph:
    """The graph with what follows from its frozen attributes as constants, as these are now."""
    parts = _Parts(graph)
    if not parts.held:
        return graph
    fixed, read = parts.constants()
    sources = [graph.inputs[place] for place in read]
    given = [source.tensor for source in sources if isinstance(source, AttributeInput)]
    held = computed_now(fixed, given)
    made = parts.program(range(len(graph.inputs)))
    constants = [ConstantInput(f"_held_{n}", value) for n, value in enumerate(held)]
    return replace(graph, graph=made, inputs=(*graph.inputs, *constants))


class _Parts:
    """What of a graph follows from its frozen inputs alone, and what the rest uses of that."""

    def __init__(self, graph: AtenGraph) -> None:
        self._graph = graph
        self._constants = Constants(graph)
        self._views: set[fx.Node] = set()
        """Views of constants that the program makes itself."""
        self._needed: set[fx.Node] = set()
        """The constants that it takes."""
        for node in graph.graph.nodes:
            if node not in self._constants:
                for used in node.all_input_nodes:
                    self._need(used)
        nodes = (node for node in graph.graph.nodes if node in self._needed)
        self.held = [node for node in nodes if node.op != "placeholder"]

    def _need(self, node: fx.Node) -> None:
        """Note what the program needs to have a constant: views that it makes, and their base."""
        if node not in self._constants:
            return
        root = storage_root(node)
        while node is not root:
            self._views.add(node)
            node = node.all_input_nodes[0]
        self._needed.add(root)

    def is_spared(self, placeholder: fx.Node) -> bool:
        """Whether the program does not read an input."""
        return placeholder in self._constants and placeholder not in self._needed

    def constants(self) -> tuple[fx.GraphModule, tuple[int, ...]]:
        """What computes the held values, and of which inputs."""
        wanted: set[fx.Node] = set()
        left = list(self.held)
        while left:
            node = left.pop()
            if node not in wanted:
                wanted.add(node)
                left += node.all_input_nodes
        made = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in self._graph.graph.nodes:
            if node in wanted:
                copies[node] = made.node_copy(node, copies.__getitem__)
        made.output(tuple(copies[node] for node in self.held))
        places = enumerate(self._graph.placeholders)
        read = tuple(place for place, node in places if node in wanted)
        return fx.GraphModule(torch.nn.Module(), count_from_inputs(made)), read

    def program(self, kept: Sequence[int]) -> fx.Graph:
        """What is left, over some of the inputs and the held values."""
        made = type(self._graph.graph)()
        copies: dict[fx.Node, fx.Node] = {}
        placeholders = self._graph.placeholders
        for place in kept:
            copies[placeholders[place]] = made.node_copy(placeholders[place])
        for node in self.held:
            copies[node] = made.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in self._graph.graph.nodes:
            is_left = node not in self._constants or node in self._views
            if node.op == "call_function" and is_left:
                copies[node] = made.node_copy(node, copies.__getitem__)
        output = made.output(tuple(copies[node] for node in self._graph.results))
        output.meta = dict(self._graph.output_node.meta)
        return made
