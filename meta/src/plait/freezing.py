"""Which inputs of a graph are taken for constants under the option `freeze`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx

    from plait_fx_passes import AtenGraph


def frozen(graph: AtenGraph, program: fx.GraphModule) -> AtenGraph:
    """The ATen graph of a program, with the parameters and buffers to which it does not write
    frozen."""
    from plait_fx_passes import AttributeInput, UserInput, can_freeze

    placeholders = program.graph.find_nodes(op="placeholder")
    found = []
    for place, source in enumerate(graph.inputs):
        is_held = isinstance(source, AttributeInput) or (
            isinstance(source, UserInput) and bool(placeholders[source.index].meta.get("of_module"))
        )
        if is_held and can_freeze(graph, place):
            found.append(place)
    return replace(graph, frozen=tuple(found))
