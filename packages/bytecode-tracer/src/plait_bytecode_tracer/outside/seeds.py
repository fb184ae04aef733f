"""Seeds of torch's random generators, which a call sets around its graph.

A graph draws random numbers, but sets no generator: who compiles it would set that while compiling.
So a seed that comes before all draws is set before the graph, and one that comes after them, after
it; what draws in between goes on after the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.failing import is_opaque
from plait_bytecode_tracer.rewinding import draws


@dataclass(slots=True)
class Seeds:
    """How a trace seeds torch's generators, and whether it draws from them."""

    first: int | None = None
    """The seed that is set before anything is drawn."""
    is_last: bool = False
    """Whether one is set after the graph."""
    has_drawn: bool = False

    def note(self, node: fx.Node) -> None:
        """Note a new node. Raises TraceBreakError for one that draws after the last seed."""
        if not draws(node) and not is_opaque(node.target):
            return
        if self.is_last:
            node.graph.erase_node(node)
            raise TraceBreakError("GB0002", "random numbers after a generator was seeded")
        self.has_drawn = True


def seeding(run: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """A graph's call by generators with this seed."""

    def call(*args: Any) -> Any:
        torch.manual_seed(seed)
        return run(*args)

    return call
