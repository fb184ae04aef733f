"""Results of graphs that switch inference mode: whether they are tensors of that mode.

What runs a graph makes all its results in the mode in which it is called. Autograd refuses to save
those of inference mode, and nobody counts how often they are changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.tensors.ambient import INFERENCE_SWITCHES


def inferred(graph: fx.Graph) -> tuple[tuple[int, bool], ...]:
    """The results by their places, and whether they are of inference mode, of a graph that switches
    it; none of another one."""
    if not any(node.target in INFERENCE_SWITCHES for node in graph.nodes):
        return ()
    results = graph.output_node().args[0]
    assert isinstance(results, list | tuple), "graphs return several values"
    values = [node.meta.get("val") if isinstance(node, fx.Node) else None for node in results]
    return tuple(
        (place, value.is_inference())
        for place, value in enumerate(values)
        if isinstance(value, torch.Tensor) and not value.requires_grad
    )


def inferring(run: Callable[..., Any], wanted: Sequence[tuple[int, bool]]) -> Callable[..., Any]:
    """A graph's call with these results as tensors of inference mode, or as others."""

    def call(*args: Any) -> Any:
        results = [*run(*args)]
        made: dict[int, torch.Tensor] = {}
        for place, is_inference in wanted:
            result = results[place]
            if result.is_inference() is not is_inference:
                if id(result) not in made:
                    made[id(result)] = _made_in(result, is_inference)
                results[place] = made[id(result)]
        return tuple(results)

    return call


def _made_in(tensor: torch.Tensor, is_inference: bool) -> torch.Tensor:
    """A tensor over the same memory, as one that was made in inference mode, or outside of it."""
    with torch.inference_mode(is_inference), torch.no_grad():
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            return tensor.clone()
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return made.set_(
            tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
        )
