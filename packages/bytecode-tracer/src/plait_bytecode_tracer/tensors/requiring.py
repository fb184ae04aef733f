"""Tensors of the caller's of which a call sets whether they need gradients.

That is done before the graph runs, as a graph that is compiled with its backward finds out which
inputs need gradients as it begins. So nothing of the graph may have used the tensor before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.outside.tensors import guard_requires_grad
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.gradients import is_leaf
from plait_bytecode_tracer.values.variables import TensorVariable


def require_before(state: TraceState, owner: TensorVariable, wanted: bool) -> None:
    """Set it before the graph, and guard what it is. Raises TraceBreakError where that is late."""
    real = owner.original
    late = owner.node.op != "placeholder" or state.scope.parent is not None
    late = late or any(map(_computes, owner.node.users))
    if late or real is None or real.is_inference() or owner.node in state.derivatives.required:
        raise TraceBreakError("GB0002", "requires_grad_() of a tensor that has been used")
    if not is_leaf(state, owner) or not (real.is_floating_point() or real.is_complex()):
        raise TraceBreakError("GB0002", "requires_grad_() of a tensor that cannot need gradients")
    guard_requires_grad(state)
    owner.fake.requires_grad_(wanted)
    state.derivatives.required[owner.node] = owner, wanted


def _computes(node: fx.Node) -> bool:
    """Whether a node does more than to tell a size."""
    return not isinstance(node.meta.get("val"), int | torch.SymInt)


def requiring(run: Callable[..., Any], required: Sequence[tuple[int, bool]]) -> Callable[..., Any]:
    """A graph's call with inputs, by their places, set to need gradients or not.

    They are as they were where the graph raises, as the call is then made in another way.
    """

    def call(*args: Any) -> Any:
        for place, wanted in required:
            args[place].requires_grad_(wanted)
        try:
            return run(*args)
        except BaseException:
            for place, wanted in required:
                args[place].requires_grad_(not wanted)
            raise

    return call
