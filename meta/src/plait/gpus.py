"""Graphs on several GPUs: cut so that each part is on one, which then runs without Python.

What goes from one GPU to another is a call between parts, as in eager: torch orders the streams of
both around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx


def gpu_starts(captured: fx.GraphModule) -> frozenset[fx.Node]:
    """The nodes at which a graph goes on on another GPU; none where it is on one, or on none."""
    found: set[fx.Node] = set()
    current: int | None = None
    for node in captured.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        on = _gpu_of(node)
        if on is None or on == current:
            continue
        if current is not None:
            found.add(node)
        current = on
    return frozenset(found)


def moves_between_gpus(node: fx.Node) -> bool:
    """Whether a node is given tensors of one GPU and gives some of another."""
    made = _gpus(node.meta.get("val"))
    if not made or node.op == "placeholder":
        return False
    given = {each for source in node.all_input_nodes for each in _gpus(source.meta.get("val"))}
    return len(made | given) > 1


def _gpu_of(node: fx.Node) -> int | None:
    """The GPU that a node computes on: of what it gives, else of what it is given."""
    made = _gpus(node.meta.get("val"))
    given = (_gpus(source.meta.get("val")) for source in node.all_input_nodes)
    return next((min(each) for each in (made, *given) if each), None)


def _gpus(value: Any) -> set[int]:
    return {each.device.index or 0 for each in tensors_in(value) if each.device.type == "cuda"}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of what a node gives."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
