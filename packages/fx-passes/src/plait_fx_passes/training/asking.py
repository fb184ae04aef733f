"""Which gradients ask for which values of the forward.

The caller may write to what it holds, inputs and results, before it asks for gradients. In eager a
backward raises then where it comes to a node that has saved what was written, and works with what
other nodes have saved otherwise. So a compiled backward reads an input for no more gradients than
eager's does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from torch import fx

from plait_fx_passes.aliasing import is_view


class Asking:
    """The tangents whose gradients ask for each node of a joint graph, as bits of a number.

    ``read`` has those that read the value itself, or a view of it, in nodes that are none of the
    ``forward``; ``all`` also those that read what the forward computes from it, which they may
    compute again.
    """

    def __init__(
        self,
        graph: fx.Graph,
        tangents: Sequence[fx.Node],
        gradients: Iterable[fx.Node],
        forward: Set[fx.Node],
    ) -> None:
        self.everything = (1 << len(tangents)) - 1
        late = _following(graph, tangents)
        self.all = {node: self.everything for node in gradients if node not in late}
        self.read = dict(self.all)
        for node in reversed(graph.nodes):
            bits = late.get(node) or self.all.get(node, 0)
            own = bits
            if node in forward:
                own = self.read.get(node, 0) if is_view(node) else 0
            for each in node.all_input_nodes if bits else ():
                self.all[each] = self.all.get(each, 0) | bits
                self.read[each] = self.read.get(each, 0) | own


def _following(graph: fx.Graph, tangents: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """What is computed from tangents, and from which, as bits."""
    found = {node: 1 << number for number, node in enumerate(tangents)}
    for node in graph.nodes:
        if node.op == "call_function":
            bits = 0
            for each in node.all_input_nodes:
                bits |= found.get(each, 0)
            if bits:
                found[node] = bits
    return found


def inputs_read(
    asking: Asking, inputs: Sequence[fx.Node]
) -> tuple[tuple[int, frozenset[int]], ...]:
    """The inputs, by placeholder, that the backward itself reads, each with the tangents, by their
    order, whose gradients do."""
    found = [(index, asking.read.get(node, 0)) for index, node in enumerate(inputs)]
    return tuple((index, members(bits)) for index, bits in found if bits)


def members(bits: int) -> frozenset[int]:
    """The numbers that bits stand for."""
    return frozenset(n for n in range(bits.bit_length()) if bits >> n & 1)


def bits_of(numbers: Iterable[int]) -> int:
    """Numbers as bits."""
    return sum(1 << n for n in numbers)
