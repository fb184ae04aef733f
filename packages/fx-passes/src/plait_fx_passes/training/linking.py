"""What gradients share with the program whose gradients they are.

In eager, a gradient that can be differentiated goes through nodes of the program itself, those that
computed what it depends on: a backward frees them for both, and neither can go through them a
second time. Compiled, the gradients are a program of their own; the freeing is shared here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.autograd.graph import Node

from plait_fx_passes.record.fakes import fake_of
from plait_fx_passes.training.again import Again
from plait_fx_passes.training.flow import Step, classes_of, nodes_below
from plait_fx_passes.training.freeing import Freeing, keeps_graph
from plait_fx_passes.training.gradient_program import Wanted
from plait_fx_passes.training.joint_graph import JointGraph
from plait_utils import dataclass
from plait_utils.interrupts import uninterrupted

Shared: TypeAlias = tuple[frozenset[int], ...]
"""For each gradient that is handed out, the steps of the program that a backward from it runs."""


def shared_steps(joint: JointGraph, again: Again, wanted: Wanted) -> Shared | None:
    """What the gradients of one kind of backward share with the program; None for nothing, or
    where that cannot be told: the program does not run on fake tensors as they are."""
    numbers = {step: number for number, step in enumerate(joint.flow.steps)}
    if not numbers:
        return None
    try:
        results, leaves, gradients = _on_fakes(joint, again, wanted)
    except Exception:  # whatever a program raises that needs real values
        return None
    own = _steps_by_node(joint, results, leaves, numbers)
    shared = tuple(
        frozenset(own[node] for node in nodes_below([each]) if node in own)
        if each is not None and each.requires_grad
        else frozenset[int]()
        for each in gradients
    )
    return shared if any(shared) else None


@uninterrupted
def _on_fakes(
    joint: JointGraph, again: Again, wanted: Wanted
) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor], Sequence[torch.Tensor | None]]:
    """The program and its gradients run by autograd on fake tensors: results by number, leaves by
    placeholder, and gradients as :meth:`Again.gradients` gives them."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    nodes = [placeholders[n] for n in again.uses.sources]
    nodes += [placeholders[joint.input_count + joint.tangents.index(n)] for n in wanted.tangents]
    values = [fake_of(node.meta["val"].fake_mode, node.meta["val"]) for node in nodes]
    for value, follows in zip(values, wanted.follows, strict=True):
        value.requires_grad_(follows)
    count = len(again.uses.sources)
    given = dict(zip(wanted.tangents, values[count:], strict=True))
    tangents = [given.get(n) for n in joint.tangents]
    mode = values[0].fake_mode
    with mode, torch.enable_grad(), again.as_before((), again.uses.autocast):
        sources = again.sources(dict(zip(again.uses.sources, values[:count], strict=True)), {})
        results = again.results(sources)
        gradients = again.differentiated(results, tangents, sources)
    return results, sources, gradients


def _steps_by_node(
    joint: JointGraph,
    results: Mapping[int, torch.Tensor],
    leaves: Mapping[int, torch.Tensor],
    numbers: Mapping[Step, int],
) -> dict[Node, int]:
    """Which of the program's steps each node of its autograd graph belongs to."""
    inputs = {n: leaf for n, leaf in leaves.items() if joint.gradients[n] is not None}
    outputs = [results[n] for n in joint.tangents]
    found = classes_of(outputs, {n: (leaf,) for n, leaf in inputs.items() if leaf.requires_grad})
    return {node: numbers[step] for node, step in found.items() if step in numbers}


@dataclass(frozen=True, slots=True)
class Owner:
    """The node of a compiled program, what frees its tensors, and these."""

    ctx: Any
    freeing: Freeing
    held: tuple[torch.Tensor, ...]


class _Linked(torch.autograd.Function):
    """Gradients whose graph goes through steps of the node that they came from."""

    @staticmethod
    def forward(
        ctx: Any, owner: Owner, shared: Shared, *values: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.owner, ctx.freeing, ctx.shared = owner.ctx, owner.freeing, shared
        return tuple(value.data for value in values)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        pairs = zip(ctx.shared, given, strict=True)
        steps = frozenset[int]().union(*(steps for steps, each in pairs if each is not None))
        ctx.freeing.run_by_others(ctx.owner, steps, keeps=keeps_graph())
        return (None, None, *given)


def linked(
    owner: Owner, shared: Shared, gradients: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """The gradients that a node has computed, so that what frees its steps frees them for both."""
    apply: Callable[..., tuple[torch.Tensor, ...]] = _Linked.apply
    places = [
        n
        for n, (each, steps) in enumerate(zip(gradients, shared, strict=True))
        if each is not None and each.requires_grad and steps
    ]
    if not places:
        return tuple(gradients)
    owner.freeing.share(owner.ctx, owner.held)
    made = list(gradients)
    values = [gradients[n] for n in places]
    parts = apply(owner, tuple(shared[n] for n in places), *values)
    for n, part in zip(places, parts, strict=True):
        made[n] = part
    return tuple(made)
