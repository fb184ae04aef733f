"""Outputs whose gradients reach no input, but leaves that the program makes and keeps to itself.

Energies and forces of a model whose parameters need no gradients are such: positions are cloned,
made a leaf, and differentiated by. What is returned requires gradients, and going backward from it
does nothing that can be seen, but that a second time raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from plait_fx_passes.training.flow import Flow, flow_of
from plait_fx_passes.training.spent import USED_UP, is_spent

Steps: TypeAlias = tuple[int, ...]
"""Numbers of the steps that a backward from an output runs, of those that save tensors."""

_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph


def leaves_behind(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves that the gradients of tensors reach."""
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(waiting)
    found: dict[int, torch.Tensor] = {}
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            found[id(leaf)] = leaf
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    return list(found.values())


def steps_adrift(
    mode: FakeTensorMode,
    tensors: Mapping[int, torch.Tensor],
    leaves: Mapping[int, Sequence[torch.Tensor]],
) -> tuple[dict[int, Steps], frozenset[int]] | None:
    """The steps for each of the tensors, and which of these the program has used up; None where
    gradients of any reach an input, or none reaches anything.

    Args:
        mode: of the tensors.
        tensors: the results that need gradients, by number.
        leaves: the inputs that gradients are asked for.
    """
    if not tensors:
        return None
    inputs = {id(leaf) for each in leaves.values() for leaf in each}
    behind = leaves_behind(list(tensors.values()))
    if not behind or any(id(leaf) in inputs for leaf in behind):
        return None
    flow = flow_of(list(tensors.values()), {n: (leaf,) for n, leaf in enumerate(behind)})
    if not all(flow.reached):
        return None
    spent = frozenset(n for n, tensor in tensors.items() if is_spent(mode, tensor, behind))
    return {n: _steps(flow, place) for place, n in enumerate(tensors)}, spent


def _steps(flow: Flow, place: int) -> Steps:
    return tuple(sorted(flow.run([place], None)))


class _Adrift(torch.autograd.Function):
    """Stands for a graph behind which are leaves that nobody sees."""

    @staticmethod
    def forward(
        ctx: Any, steps: Sequence[Steps], anchor: torch.Tensor, *values: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.steps, ctx.spent = steps, set()
        return tuple(value.detach() for value in values)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> tuple[None, ...]:
        pairs = zip(ctx.steps, given, strict=True)
        run = {step for steps, each in pairs if each is not None for step in steps}
        if run & ctx.spent:
            raise RuntimeError(USED_UP)
        if not _keeps_graph():
            ctx.spent |= run
        return (None,) * (2 + len(given))


def set_adrift(steps: Sequence[Steps], values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Tensors over the same memory that require gradients, which reach nothing that is seen."""
    apply: Callable[..., tuple[torch.Tensor, ...]] = _Adrift.apply
    with torch.enable_grad():
        return apply(steps, torch.empty(0, requires_grad=True), *values)
