"""Tensors that somebody would see if the graph failed now, though the call may take them back.

What a program sets and then sets anew is no output of the graph, which lets go of it when nothing
computes with it any more. Where an operator fails before that, it is the program's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torch import fx

from plait_bytecode_tracer.values.open_lists import raw_items
from plait_bytecode_tracer.values.variables import (
    CellVariable,
    DictVariable,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    TensorVariable,
)

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

SHOWN = "is_shown"
"""In the meta of a node: whether objects of the caller held its value where one may fail."""
_DEPTH = 4


def mark_shown(state: TraceState) -> None:
    """Note which nodes an error of the next one would show."""
    world = state.world
    attributes = (value for table in world.attributes.values() for value in table.values())
    variables = (value for _, value in world.context.values() if value is not None)
    for node in _nodes((*world.changed.values(), *attributes, *variables), _DEPTH):
        node.meta[SHOWN] = True
    for gradient in state.derivatives.gradients.values():
        for node in _nodes((gradient,), 1):
            node.meta[SHOWN] = True


def _nodes(held: Iterable[object], depth: int) -> Iterator[fx.Node]:
    for each in held:
        match each:
            case TensorVariable(node):
                yield node
            case SequenceVariable() if depth:
                yield from _nodes(raw_items(each.items), depth - 1)
            case DictVariable() if depth:
                yield from _nodes(each.items.values(), depth - 1)
            case SetVariable() if depth:
                yield from _nodes(each.items, depth - 1)
            case CellVariable(content) if depth:
                yield from _nodes((content,), depth - 1)
            case ObjectVariable() if depth:
                yield from _nodes(each.attributes.values(), depth - 1)


def keeping(module: fx.GraphModule) -> fx.GraphModule:
    """A module that also gives what was shown, so that it lasts; itself if there is nothing."""
    output = next(iter(module.graph.find_nodes(op="output")))
    given = [*output.args[0]]
    shown = [node for node in module.graph.nodes if node.meta.get(SHOWN) and node not in given]
    shown = [node for node in shown if node.op not in ("placeholder", "get_attr")]
    if not shown:
        return module
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(module.graph, known)
    graph.output(tuple(known[each] for each in (*given, *shown)))
    return fx.GraphModule(module, graph, type(module).__name__)
