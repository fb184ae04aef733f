"""Symbolic sizes of graph modules: read from the tensors that the module is called with.

A recorded graph has them among its nodes' arguments, as numbers. `torch.compile` hands some to a
module as arguments of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer
from torch.utils._pytree import tree_map_only

from plait_fx_passes.errors import PassError
from plait_fx_passes.open_sizes import OpenGraph, dimensions, expression_of, has_open_sizes

_SIZE = torch.ops.aten.sym_size.int


def without_numbers(
    module: fx.GraphModule, examples: Sequence[object]
) -> tuple[fx.GraphModule, list[torch.Tensor], dict[str, object]]:
    """The module without arguments that are numbers, the examples of the others, and the numbers
    by name."""
    if all(isinstance(each, torch.Tensor) for each in examples):
        return module, cast("list[torch.Tensor]", list(examples)), {}
    graph = OpenGraph()
    numbers: dict[str, object] = {}
    known: dict[fx.Node, Any] = {}
    arguments = module.graph.find_nodes(op="placeholder")
    for node, example in zip(arguments, examples, strict=True):
        if isinstance(example, (int, torch.SymInt)):
            numbers[node.name] = known[node] = example
    graph.output(graph.graph_copy(module.graph, known))
    others = [each for each in examples if not isinstance(each, (int, torch.SymInt))]
    return fx.GraphModule(module, graph), cast("list[torch.Tensor]", others), numbers


def with_computed_sizes(graph: fx.Graph, inputs: Sequence[tuple[fx.Node, object]]) -> fx.Graph:
    """A graph in which sizes are computed of its arguments; itself where none is symbolic.

    Args:
        graph: with symbolic sizes among the arguments of its nodes.
        inputs: arguments of the graph, and the fake tensors and sizes that were recorded for them.

    Raises PassError for a size that depends on a symbol that no tensor tells.
    """
    if not any(has_open_sizes([node.args, node.kwargs]) for node in graph.nodes):
        return graph
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    tracer = GraphAppendingTracer(graph)
    places = dimensions([value for _, value in inputs])
    first = next(node for node in graph.nodes if node.op not in ("placeholder", "get_attr"))
    symbols = {
        expression_of(value): fx.Proxy(node, tracer)
        for node, value in inputs
        if isinstance(value, torch.SymInt)
    }
    computed: dict[Any, object] = {}

    def number(size: torch.SymInt) -> object:
        expression = expression_of(size)
        if expression not in computed:
            for symbol in sorted(expression.free_symbols - symbols.keys(), key=str):
                if symbol not in places:
                    raise PassError(f"no tensor tells the size {symbol}")
                index, dim = places[symbol]
                read = graph.call_function(_SIZE, (inputs[index][0], dim))
                symbols[symbol] = fx.Proxy(read, tracer)
            made = sympy_interp(PythonReferenceAnalysis, symbols, expression)
            computed[expression] = made.node if isinstance(made, fx.Proxy) else int(made)
        return computed[expression]

    with graph.inserting_before(first):
        for node in list(graph.nodes):
            if has_open_sizes([node.args, node.kwargs]):
                node.args = tree_map_only(torch.SymInt, number, node.args)
                node.kwargs = tree_map_only(torch.SymInt, number, node.kwargs)
    plain = fx.Graph()
    plain.output(plain.graph_copy(graph, {}))
    return plain
