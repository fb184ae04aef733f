"""Splits a joint graph into a forward and a backward, and says what passes between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import fx
from torch.fx.node import Argument

from plait_fx_passes.aliasing import is_view, storage_root
from plait_fx_passes.aten_graph import AtenGraph, Computed, UserInput
from plait_fx_passes.training.joint_graph import JointGraph, is_random

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class SavedInput:
    """The backward gets the tensor that was fed to placeholder ``input`` of the forward."""

    input: int


@dataclass(frozen=True, slots=True)
class SavedResult:
    """The backward gets result ``result`` of the forward."""

    result: int


Saved: TypeAlias = SavedInput | SavedResult


@dataclass(frozen=True, slots=True)
class Partition:
    """A joint graph as two graphs.

    ``forward`` computes the program's results and, after them, what only the backward needs;
    ``backward`` takes the ``saved`` tensors in order, then the tangents, and computes the
    gradients. Both are flat programs: nothing is written back, outputs are their results.
    """

    forward: AtenGraph
    backward: AtenGraph
    saved: tuple[Saved, ...]


def partition(joint: JointGraph) -> Partition:
    """Save whatever of the forward the backward needs, looked at from where it was made.

    What the program does not compute for its own results is computed in the backward, but for
    random numbers, which are drawn in the program's order. Views are taken again there, and an
    input that is written to is saved as a copy.
    """
    random = [node for node in joint.graph.nodes if is_random(node)]
    inputs = joint.graph.find_nodes(op="placeholder")[: joint.input_count]
    forward = _ancestors([*joint.program.results[: joint.result_count], *random, *inputs])
    gradients = joint.program.results[joint.result_count :]
    backward = _ancestors(gradients, stop=forward)
    needed = _frontier(backward, forward, gradients)
    return split(joint, needed)


def split(joint: JointGraph, needed: Sequence[fx.Node]) -> Partition:
    """The two graphs, where the backward is to start from ``needed``, nodes of the forward."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    positions = {node: index for index, node in enumerate(placeholders)}
    results = list(joint.program.results[: joint.result_count])
    known = {node: index for index, node in reversed(list(enumerate(results)))}
    written = {mutation.input for mutation in joint.program.mutations}
    saved: list[Saved] = []
    extra: list[fx.Node] = []
    copied: set[fx.Node] = set()
    owned = set(map(storage_root, results))
    for node in needed:
        if node in positions and positions[node] not in written:
            saved.append(SavedInput(positions[node]))
        elif node in known:
            saved.append(SavedResult(known[node]))
        else:
            saved.append(SavedResult(len(results) + len(extra)))
            extra.append(node)
            if node in positions or node in owned:
                copied.add(node)
    outputs = [*results, *extra]
    own = placeholders[: joint.input_count]
    # Random numbers that nothing uses are drawn too: the generator is to go on as in eager.
    random = [node for node in joint.graph.nodes if is_random(node)]
    graph = _extract(joint.graph, own, _ancestors([*outputs, *random]), outputs, copied)
    inputs = [*needed, *placeholders[joint.input_count :]]
    gradients = joint.program.results[joint.result_count :]
    body = _ancestors(gradients, stop=set(needed))
    given = {node for node in gradients if storage_root(node) in set(needed)}
    backward = _extract(joint.graph, inputs, body, gradients, given)
    return Partition(_flat(graph), _flat(backward), tuple(saved))


def _flat(graph: fx.Graph) -> AtenGraph:
    count = len(graph.find_nodes(op="placeholder"))
    output = next(iter(reversed(graph.nodes)))
    return AtenGraph(
        graph=graph,
        inputs=tuple(UserInput(index) for index in range(count)),
        outputs=tuple(Computed(index) for index in range(len(output.args[0]))),
    )


def _ancestors(nodes: Iterable[fx.Node], stop: set[fx.Node] | None = None) -> set[fx.Node]:
    """The nodes and all that they are computed from, except what ``stop`` has."""
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node in found or (stop is not None and node in stop):
            continue
        found.add(node)
        waiting += node.all_input_nodes
    return found


def _frontier(
    backward: set[fx.Node], forward: set[fx.Node], gradients: Sequence[fx.Node]
) -> list[fx.Node]:
    """What the backward uses of the forward, in the order of the graph: no views, no tuples."""
    used = {each for node in backward for each in node.all_input_nodes if each in forward}
    used |= {node for node in gradients if node in forward}
    roots: set[fx.Node] = set()
    for node in used:
        roots |= _tensors(storage_root(node)) if is_view(node) else _tensors(node)
    order = {node: n for n, node in enumerate(next(iter(backward or forward)).graph.nodes)}
    return sorted(roots, key=order.__getitem__)


def _tensors(node: fx.Node) -> set[fx.Node]:
    """The node; for one with several results, those of them that are used."""
    return set(node.users) if isinstance(node.meta["val"], (tuple, list)) else {node}


def _extract(
    graph: fx.Graph,
    inputs: Sequence[fx.Node],
    body: set[fx.Node],
    results: Sequence[fx.Node],
    copied: set[fx.Node],
) -> fx.Graph:
    """A graph of its own that computes ``results`` from ``inputs``."""
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = made.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in graph.nodes:
        if node in body and node not in copies and node.op == "call_function":
            copies[node] = made.node_copy(node, copies.__getitem__)
    last = [_copy(made, copies[node]) if node in copied else copies[node] for node in results]
    made.output(cast(Argument, tuple(last)))
    return made


def _copy(graph: fx.Graph, node: fx.Node) -> fx.Node:
    made = graph.call_function(aten.clone.default, (node,))
    made.meta = dict(node.meta)
    return made
