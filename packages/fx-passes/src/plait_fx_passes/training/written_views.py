"""Inputs that a program writes to and that are views, of which autograd then makes new nodes.

What is computed from such a view after a write goes back through its new node, and what is
computed from another view of it, taken before, past it. Which node is whose shows in hooks on the
view and in its gradient; a compiled program that computes from what its inputs were cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from plait_fx_passes.aten_graph import InputView, UserInput
from plait_fx_passes.training.plan import TrainingPlan

Test: TypeAlias = Callable[[Sequence[torch.Tensor]], bool]


def shows_nodes_of_views(plan: TrainingPlan) -> Test | None:
    """Whether, for given arguments, the program is to run as it was captured; None for never.

    That is so for views that the program writes to and returns views of, and for views with a
    history: where it writes to them without gradients and computes from them, and where they
    have hooks.
    """
    program = plan.program
    viewed = {each.input for each in program.outputs if isinstance(each, InputView)}
    tests: list[tuple[int, Callable[[torch.Tensor], bool]]] = []
    for mutation in program.mutations:
        source, index = program.inputs[mutation.input], mutation.input
        if not isinstance(source, UserInput):
            continue
        if mutation.result in plan.tangents:
            tests.append((source.index, _is_node if index in viewed else _has_hooks))
        elif mutation.counted and plan.gradients[index] is not None:
            tests.append((source.index, _has_history))
    if not tests:
        return None
    return lambda arguments: any(test(arguments[place]) for place, test in tests)


def _has_history(tensor: torch.Tensor) -> bool:
    return tensor._is_view() and tensor.requires_grad and not tensor.is_leaf


def _has_hooks(tensor: torch.Tensor) -> bool:
    return _has_history(tensor) and bool(tensor._backward_hooks)


def _is_node(tensor: torch.Tensor) -> bool:
    """Whether what is written makes it, or what it is a view of, the result of another node."""
    return tensor._is_view() and not (tensor.requires_grad and tensor.is_leaf)
