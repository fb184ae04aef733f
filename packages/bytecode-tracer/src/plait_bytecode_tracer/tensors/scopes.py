"""Graphs inside the graph: bodies of functions that a transform calls, as `torch.vmap` does.

A body is a graph module of its own. Its inputs are the tensors that the transform passes to
it, then those that it uses from the graphs around it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import field
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_utils import dataclass


@dataclass(slots=True)
class Scope:
    """A graph that is being built: that of the call, or of a body inside it."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    parent: Scope | None = None
    holder: torch.nn.Module = field(default_factory=torch.nn.Module)
    """Holds the bodies that the graph's `get_attr` nodes name."""
    free: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """The inputs that stand for values of the graph around it."""

    @property
    def root(self) -> Scope:
        """The graph of the call."""
        return self if self.parent is None else self.parent.root

    def local(self, node: fx.Node) -> fx.Node:
        """A value as this graph has it. Raises TraceBreakError for one of a body that ended."""
        if node.graph is self.graph:
            return node
        if self.parent is None:
            raise TraceBreakError("GB0009", "a tensor that leaves the function of a transform")
        outer = self.parent.local(node)
        known = self.free.get(outer)
        if known is None:
            known = self.graph.placeholder(f"free{len(self.free)}")
            known.meta.update(outer.meta)
            self.free[outer] = known
        return known

    def add(self, body: fx.GraphModule) -> fx.Node:
        """The node that holds a body in this graph."""
        return self.graph.create_node("get_attr", self.add_module(body))

    def add_module(self, module: torch.nn.Module) -> str:
        """Hold a module under a name of the graph's own."""
        kind = "body" if isinstance(module, fx.GraphModule) else "function"
        name = f"{kind}{len(self.holder._modules)}"
        self.holder.add_module(name, module)
        return name


@contextlib.contextmanager
def without_transforms() -> Iterator[None]:
    """Run outside of the transforms that are calling: their functions see no plain tensors."""
    levels: list[Any] = []
    functorch: Any = torch._C._functorch
    try:
        while functorch.peek_interpreter_stack() is not None:
            levels.append(functorch.pop_dynamic_layer_stack())
        yield
    finally:
        while levels:
            functorch.push_dynamic_layer_stack(levels.pop())
