"""Products and large reductions of a graph with what is computed with them, each as a graph.

What a product is best computed by, a call or a kernel with what surrounds it, and in how many parts
a reduction, is found by running that part of the graph alone, in each way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from plait_ir_lowering import Buffer, Definition, Graph, Pointwise, Reduction, TensorRef
from plait_scheduler.decisions import DecisionKind
from plait_scheduler.kernel_products import is_product
from plait_scheduler.nodes import final_reads, reads_of
from plait_scheduler.program import Launch
from plait_scheduler.schedule import Schedule
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class ProductPiece:
    """Products that one kernel multiplies.

    Attributes:
        names: the buffers that they are, as `SchedulerOptions.kernel_products` names them, of all
            launches of the kernel.
        graph: what the first launch and those behind it compute of its products.
        own: the names of these, in `graph`.
    """

    names: tuple[str, ...]
    graph: Graph
    own: tuple[str, ...]


def product_pieces(graph: Graph, whole: Schedule) -> tuple[ProductPiece, ...]:
    """The pieces of a graph around its products, one for each kernel that multiplies matrices.

    Args:
        whole: how `graph` is scheduled with `kernel_products` for all.
    """
    made = [
        decision.first
        for decision in whole.decisions
        if decision.kind is DecisionKind.PRODUCT and decision.accepted
    ]
    nodes = _nodes(graph)
    launches = [step for step in whole.program.steps if isinstance(step, Launch)]
    of_kernel: dict[str, dict[str, list[str]]] = {}
    """By kernel, the products of each launch, by the first of them."""
    left = dict.fromkeys(made)
    for step in launches:
        here = [name for name in left if nodes[name] <= set(step.origin.nodes)]
        if here:
            of_kernel.setdefault(step.kernel, {})[here[0]] = here
            left = {name: None for name in left if name not in here}
    pieces = []
    for groups in of_kernel.values():
        own = next(iter(groups.values()))
        around: set[str] = set()
        for step in launches:
            if any(nodes[name] <= set(step.origin.nodes) for name in own):
                around |= set(step.origin.nodes)
        part = _part(graph, around, own)
        names = tuple(name for group in groups.values() for name in group)
        pieces.append(ProductPiece(names, part, tuple(own)))
    return tuple(pieces)


@dataclass(frozen=True, slots=True)
class SplitPiece:
    """Reductions that one kernel computes in two stages.

    Attributes:
        names: the buffers that they are, of all launches of the kernel.
        graph: what the launches of the first of them compute.
        own: the name of that.
    """

    names: tuple[str, ...]
    graph: Graph
    own: str


def split_pieces(graph: Graph, whole: Schedule) -> tuple[SplitPiece, ...]:
    """The pieces of a graph around its reductions that are split, one for each kernel of these; but
    for those of squared deviations, which are split with the sums that these are from.

    Args:
        whole: how `graph` is scheduled by rule.
    """
    splits = [d for d in whole.decisions if d.kind is DecisionKind.SPLIT and d.accepted]
    together = {name for d in splits if d.second for name in (d.first, d.second)}
    nodes = _nodes(graph)
    launches = [step for step in whole.program.steps if isinstance(step, Launch)]
    of_kernel: dict[str, list[str]] = {}
    around: dict[str, set[str]] = {}
    for name in dict.fromkeys(d.first for d in splits):
        here = [s for s in launches if nodes.get(name) and nodes[name] <= set(s.origin.nodes)]
        if here and name not in together:
            of_kernel.setdefault(here[0].kernel, []).append(name)
            around[name] = {node for step in here for node in step.origin.nodes}
    pieces = []
    for names in of_kernel.values():
        part = _part(graph, around[names[0]], ())
        if any(b.name == names[0] for d in part.definitions for b in d.buffers):
            pieces.append(SplitPiece(tuple(names), part, names[0]))
    return tuple(pieces)


def _nodes(graph: Graph) -> Mapping[str, frozenset[str]]:
    """The nodes that each definition comes from, by its buffers."""
    return {b.name: frozenset(d.origin.nodes) for d in graph.definitions for b in d.buffers}


def _part(graph: Graph, nodes: Collection[str], own: Collection[str]) -> Graph:
    """The definitions of these nodes as a graph: the named products, and loops."""
    taken: list[Definition] = []
    for definition in graph.definitions:
        is_named = is_product(definition) and definition.buffers[0].name in own
        is_loop = isinstance(definition.body, Pointwise | Reduction)
        here = set(definition.origin.nodes)
        if is_named or (is_loop and here and here <= set(nodes)):
            taken.append(definition)
    buffers = {b.name: b for b in graph.inputs}
    buffers |= {b.name: b for d in graph.definitions for b in d.buffers}
    defined = {b.name for d in taken for b in d.buffers}
    read = dict.fromkeys(name for d in taken for name in reads_of(d))
    inputs: list[Buffer] = [buffers[name] for name in read if name not in defined]
    others = [d for d in graph.definitions if d not in taken]
    needed = {*final_reads(graph), *(name for d in others for name in reads_of(d))}
    outputs = [name for d in taken for name in (b.name for b in d.buffers) if name in needed]
    refs = tuple(TensorRef(name) for name in outputs)
    return replace(
        graph, inputs=tuple(inputs), definitions=tuple(taken), outputs=refs, mutations=()
    )
