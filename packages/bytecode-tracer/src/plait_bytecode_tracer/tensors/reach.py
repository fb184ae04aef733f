"""What a backward pass reaches from its outputs: leaves, and code that it calls on the way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from plait_bytecode_tracer.tensors.stand_ins import FunctionCall
from plait_utils import dataclass

_FORMULAS = ("torch._library.autograd", "plait_bytecode_tracer.control.operators")
"""Modules of functions that stand for operators with a formula."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The leaves that a backward pass reaches from fake tensors."""

    leaves: tuple[torch.Tensor, ...]
    """Fake tensors, in the order in which they are found."""
    calls: tuple[FunctionCall, ...]
    """The calls of functions with gradients of their own that lie on the way."""
    runs_python: bool
    """Whether other Python of the program, or of torch, runs in the pass."""


def reach_of(outputs: Iterable[torch.Tensor]) -> Reach:
    """Walk autograd's graph of fake tensors to its leaves."""
    leaves: dict[int, torch.Tensor] = {}
    calls: list[FunctionCall] = []
    runs_python = False
    waiting: list[Any] = []
    for output in outputs:
        if output.grad_fn is not None:
            waiting.append(output.grad_fn)
        elif output.requires_grad:
            leaves[id(output)] = output
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            leaves[id(leaf)] = leaf
        call = getattr(node, "call", None)
        if isinstance(call, FunctionCall):
            calls.append(call)
        else:
            runs_python = runs_python or _is_python(node)
        for following, _ in reversed(node.next_functions):
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return Reach(tuple(leaves.values()), tuple(calls), runs_python)


def _is_python(node: Any) -> bool:
    """Whether a node runs a program's Python; the formula of a custom operator only computes, and
    the hooks of modules among fake tensors were traced."""
    if not isinstance(node, torch._C._FunctionBase):
        return False
    made_by: Any = getattr(type(node), "_forward_cls", None)
    if made_by is torch.nn.modules._functions.BackwardHookFunction:
        return False
    return getattr(made_by, "__module__", "") not in _FORMULAS
