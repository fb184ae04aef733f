"""What captured graphs switch for the nodes that follow: gradients, autocast, inference mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx


@cache
def settings() -> dict[Any, Callable[..., Any]]:
    """What programs switch for what follows, by its setter: what reads it."""
    import torch

    return {
        torch._C._set_grad_enabled: torch.is_grad_enabled,
        torch.set_autocast_enabled: torch.is_autocast_enabled,
        torch.set_autocast_dtype: torch.get_autocast_dtype,
        torch.set_autocast_cache_enabled: torch.is_autocast_cache_enabled,
    }


def key(node: fx.Node) -> tuple[Any, ...]:
    """Which setting a node sets: the last argument is its value."""
    return (node.target, *node.args[:-1])


_INFERENCE = "gradients_after"
"""In the meta of a node that enters or leaves inference mode: whether gradients are on after it."""


def without_inference_mode(captured: fx.GraphModule) -> fx.GraphModule:
    """The graph, with gradients switched where it enters and leaves inference mode.

    What is entered in one part of a graph would be left in another one.
    """
    import torch
    from torch import fx

    if not any(_INFERENCE in node.meta for node in captured.graph.nodes):
        return captured
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in captured.graph.nodes:
        if _INFERENCE in node.meta:
            switch, given = torch._C._set_grad_enabled, (node.meta[_INFERENCE],)
            copies[node] = graph.create_node("call_function", switch, given, {}, node.name)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(captured, graph, type(captured).__name__)


def is_switch(node: fx.Node) -> bool:
    return node.target in settings()


def switched_by(graph: fx.Graph) -> Sequence[tuple[Any, ...]]:
    """The keys of what a graph switches."""
    return tuple({key(node): None for node in graph.nodes if is_switch(node)})


@contextmanager
def kept_settings(switched: Sequence[tuple[Any, ...]]) -> Iterator[None]:
    """Puts back what a graph switches, by its keys."""
    before = [(setter, place, settings()[setter](*place)) for setter, *place in switched]
    try:
        yield
    finally:
        for setter, place, value in before:
            setter(*place, value)
