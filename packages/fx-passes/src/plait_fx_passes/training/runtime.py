"""The autograd node of a compiled program: what eager's graph of nodes would do, in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from plait_fx_passes.runtime import wrap_runtime
from plait_fx_passes.training.again import Again
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.partition import Partition, SavedInput

Compiled: TypeAlias = Callable[..., Sequence[torch.Tensor]]

_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph


def wrap_training(
    joint: JointGraph,
    parts: Partition,
    forward: Compiled,
    backward: Compiled,
    program: fx.GraphModule,
) -> Callable[..., object]:
    """The program with compiled forward and backward.

    Args:
        joint: what was partitioned.
        parts: the partition.
        forward: takes the program's inputs, returns its results and what is saved.
        backward: takes what is saved and the tangents, returns the gradients.
        program: the torch-level program, which is run again where gradients themselves are to
            be differentiated.

    Returns:
        A function of the program's own arguments: aliasing, mutation and autograd's view of
        them are those of eager.
    """
    node = autograd_node(joint, parts, forward, backward, program)
    return wrap_runtime(joint.program, node)


def autograd_node(
    joint: JointGraph,
    parts: Partition,
    forward: Compiled,
    backward: Compiled,
    program: fx.GraphModule,
) -> Compiled:
    """A function from the program's inputs to its results that autograd can differentiate."""
    results, inputs = joint.result_count, joint.input_count
    constant = tuple(n for n in range(results) if n not in joint.tangents)
    placeholders = joint.graph.find_nodes(op="placeholder")[inputs:]
    tangents = tuple(
        (position, Tangent(node.meta["val"]))
        for position, node in zip(joint.tangents, placeholders, strict=True)
    )
    again = Again(joint, program)
    gradients = tuple(None if n is None else n - results for n in joint.gradients)
    gradients += (None,) * len(again.copied)
    saved = tuple(
        (isinstance(each, SavedInput), each.input if isinstance(each, SavedInput) else each.result)
        for each in parts.saved
    )

    class CompiledProgram(torch.autograd.Function):
        """The forward and backward that were compiled for one graph."""

        @staticmethod
        def forward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            ctx.set_materialize_grads(False)
            states = again.states()
            found = forward(*given[:inputs])
            ctx.before = again.remember(given, states)
            ctx.save_for_backward(*[given[n] if is_input else found[n] for is_input, n in saved])
            ctx.mark_non_differentiable(*[found[n] for n in constant])
            return tuple(found[:results])

        @staticmethod
        def backward(ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
            held = ctx.saved_tensors
            if torch.is_grad_enabled():
                return again.gradients(ctx.before, given)
            if not _keeps_graph():
                ctx.before = None
            found = backward(*held, *[tangent.conform(given[n]) for n, tangent in tangents])
            return tuple(None if n is None else found[n] for n in gradients)

    apply: Compiled = CompiledProgram.apply
    if not again.copied:
        return apply
    return lambda *given: apply(*given, *(given[n].clone() for n in again.copied))


class Tangent:
    """What a compiled backward expects as the gradient of one result."""

    def __init__(self, value: torch.Tensor) -> None:
        self._size, self._stride = tuple(value.shape), tuple(value.stride())
        self._dtype, self._device = value.dtype, value.device

    def conform(self, given: torch.Tensor | None) -> torch.Tensor:
        """Zeros for none; a copy where the gradient lies otherwise in memory than the result."""
        if given is not None and self._lies_right(given):
            return given
        made = torch.empty_strided(self._size, self._stride, dtype=self._dtype, device=self._device)
        return made.zero_() if given is None else made.copy_(given)

    def _lies_right(self, given: torch.Tensor) -> bool:
        return given.stride() == self._stride and not given.is_neg() and not given.is_conj()
