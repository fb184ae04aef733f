"""Backwards in stages: programs that begin anew at outputs which somebody looks at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from plait_fx_passes.training.gradient_program import own_view
from plait_fx_passes.training.passed import Passed


def cut_at(
    program: fx.GraphModule, places: Sequence[Passed], given: Sequence[bool]
) -> fx.GraphModule:
    """The program, in which what comes after some of its outputs is computed from tensors of their
    own, of which gradients can be asked.

    These are, for outputs that are ``given``, arguments behind the program's own; for others,
    copies of what it computes. It returns what the program does, and then these tensors.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    arguments = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node in arguments:
        copies[node] = graph.node_copy(node)
    starts = [
        graph.placeholder(f"passed_{number}") if is_given else None
        for number, is_given in enumerate(given)
    ]
    names = {name: number for number, each in enumerate(places) for name in each.nodes}
    begins: dict[str, list[int]] = {}
    for number, each in enumerate(places):
        begins.setdefault(each.written, []).append(number)
    alike: list[list[fx.Node]] = [[] for _ in places]
    cuts: dict[int, fx.Node] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            returned = map_arg(node.args[0], copies.__getitem__)
            graph.output((returned, tuple(cuts[number] for number in range(len(places)))))
            break
        copies[node] = graph.node_copy(node, copies.__getitem__)
        own = names.get(node.name)
        if own is not None:
            alike[own].append(node)
            if own in cuts:
                copies[node] = cuts[own]
        for number in begins.get(node.name, ()):
            start, computed = starts[number], copies[alike[number][0]]
            target, source = (cut_off, computed) if start is None else (own_view, start)
            cuts[number] = graph.call_function(target, (source,))
            copies.update(dict.fromkeys(alike[number], cuts[number]))
    made = fx.GraphModule(program, graph)
    made.meta = dict(program.meta)
    return made


def cut_off(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, of which gradients are asked for, and from which none go on; those of the
    gradients themselves do."""
    if not tensor.requires_grad:
        return own_view(tensor)
    apply: Callable[[torch.Tensor], torch.Tensor] = _Cut.apply
    return apply(tensor)


class _Cut(torch.autograd.Function):
    """Keeps back the gradient of the first backward that comes by, as a leaf would: what this gives
    depends on the values here, and a backward from it goes on."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.is_passed = False
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor | None:
        found = given if ctx.is_passed else None
        ctx.is_passed = True
        return found
