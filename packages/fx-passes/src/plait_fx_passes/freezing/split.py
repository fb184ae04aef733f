"""A graph taken apart: what follows from its frozen inputs alone, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from plait_fx_passes.aliasing import is_view, storage_root
from plait_fx_passes.aten_graph import (
    AtenGraph,
    AttributeInput,
    Computed,
    SyntheticBase,
    UserInput,
)
from plait_fx_passes.freezing.constants import Constants
from plait_fx_passes.freezing.values import FrozenValues
from plait_fx_passes.layouts import has_static_sizes, is_dense
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
    written = {each.input for each in (*graph.mutations, *graph.metadata_mutations)}
    written |= set(graph.counted)
    for group in graph.shared_inputs:
        if written.intersection(group):
            written.update(group)
    based = {each.of for each in graph.inputs if isinstance(each, SyntheticBase)}
    if index in written | based or graph.differentiates:
        return False
    plain = value.layout is torch.strided and not value.is_inference()
    return plain and has_static_sizes(value) and is_dense(value) and value.numel() > 0


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

    def runner(self, run: Callable[..., Sequence[torch.Tensor]]) -> Callable[..., object]:
        """What runs the whole graph, given what runs the program."""
        values = FrozenValues(self.constants, self.read)
        kept = self.kept

        def call(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
            return run(*[inputs[place] for place in kept], *values.of(inputs))

        return call

    def written(self, whole: dict[int, int]) -> dict[int, int]:
        """By result, the input that it is written to, as the program numbers its inputs."""
        return {result: self.kept.index(place) for result, place in whole.items()}


def split_frozen(graph: AtenGraph) -> Frozen | None:
    """The graph without what follows from its frozen inputs alone; None where nothing does.

    Views of frozen inputs and of held values stay with the program: they cost nothing.
    """
    constants = Constants(graph)
    looked_at: set[fx.Node] = set()
    needed: dict[fx.Node, None] = {}
    for node in graph.graph.nodes:
        if node in constants:
            continue
        for used in node.all_input_nodes:
            _look(used, constants, looked_at, needed)
    held = [node for node in graph.graph.nodes if node in needed and node.op != "placeholder"]
    if not held:
        return None
    fixed, read = _constant_part(graph, held)
    program, kept = _program(graph, constants, looked_at, needed, held)
    return Frozen(program, fixed, read, kept)


def _look(
    node: fx.Node, constants: Constants, looked_at: set[fx.Node], needed: dict[fx.Node, None]
) -> None:
    """Note what the program needs to have a constant: views that it makes, and their base."""
    if node not in constants:
        return
    root = storage_root(node)
    while node is not root and is_view(node):
        looked_at.add(node)
        node = node.all_input_nodes[0]
    needed[root] = None


def _constant_part(
    graph: AtenGraph, held: Sequence[fx.Node]
) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """What computes the held values, and of which inputs."""
    wanted: set[fx.Node] = set()
    open_ones = list(held)
    while open_ones:
        node = open_ones.pop()
        if node not in wanted:
            wanted.add(node)
            open_ones += node.all_input_nodes
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        if node in wanted:
            copies[node] = made.node_copy(node, copies.__getitem__)
    made.output(tuple(copies[node] for node in held))
    read = tuple(place for place, node in enumerate(graph.placeholders) if node in wanted)
    return fx.GraphModule(torch.nn.Module(), count_from_inputs(made)), read


def _program(
    graph: AtenGraph,
    constants: Constants,
    looked_at: set[fx.Node],
    needed: dict[fx.Node, None],
    held: Sequence[fx.Node],
) -> tuple[AtenGraph, tuple[int, ...]]:
    """What is left, and which inputs it takes."""
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    kept: list[int] = []
    for place, node in enumerate(graph.placeholders):
        if node not in constants or node in needed:
            copies[node] = made.node_copy(node)
            kept.append(place)
    for node in held:
        copies[node] = made.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in graph.graph.nodes:
        if node.op == "call_function" and (node not in constants or node in looked_at):
            copies[node] = made.node_copy(node, copies.__getitem__)
    output = made.output(tuple(copies[node] for node in graph.results))
    output.meta = dict(graph.output_node.meta)
    count = len(kept) + len(held)
    inputs = tuple(UserInput(index) for index in range(count))
    outputs = tuple(Computed(index) for index in range(len(graph.results)))
    return AtenGraph(made, inputs, outputs), tuple(kept)
