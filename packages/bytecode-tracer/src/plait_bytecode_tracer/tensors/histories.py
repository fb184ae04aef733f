"""Inputs that gradients have come to before the call, where the code changes them in place.

The fake of an input that requires gradients is a leaf, which autograd lets nobody change. Where the
input is none, a trace that was refused such a change begins anew with fakes that are none either.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from plait_bytecode_tracer.graph.changes import is_changed
from plait_bytecode_tracer.outside.world import World
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.values.variables import TensorVariable

_REFUSAL = "leaf Variable that requires grad is being used in an in-place operation"
_PLAIN = torch._C._autograd.CreationMeta.DEFAULT


def is_refused_as_leaf(error: Exception, state: TraceState) -> bool:
    """Whether a trace broke at a change of what fakes take for a leaf, and may do without one."""
    if _REFUSAL not in str(error.__cause__):
        return False
    return any(True for _ in _with_history(state.world))


def has_history(real: torch.Tensor) -> bool:
    """Whether gradients of a tensor flow on, and autograd lets everybody change it in place."""
    if not real.requires_grad or real.is_leaf:
        return False
    if not real._is_view():
        return True
    base = real._base
    made = torch._C._autograd._get_creation_meta(real)
    return made == _PLAIN and base is not None and base.grad_fn is not None


def give_history(mode: FakeTensorMode, fake: torch.Tensor) -> None:
    """Let autograd take a fake tensor for what it has computed."""
    with mode, torch.enable_grad():
        anchor = torch.zeros((), dtype=fake.dtype, device=fake.device, requires_grad=True)
        fake.requires_grad_(False).add_(anchor)


def note_requirements(state: TraceState) -> None:
    """Tell what compiles the graph which inputs need no gradients, though their fakes have come
    to need some by what was written to them."""
    for each in state.tensor_inputs:
        needed = each.real.requires_grad
        is_set = each.node in state.derivatives.required
        if each.node.meta["val"].requires_grad is not needed and not is_set:
            each.node.meta["requires_grad"] = needed


def guard_histories(state: TraceState) -> None:
    """Inputs that are changed as no leaf may be, are none."""
    for variable in _with_history(state.world):
        if variable.source is not None and is_changed(state, variable.node):
            text = f"{variable.source.text}.is_leaf is False"
            state.guard(variable.source, "{}.is_leaf is False", text)


def _with_history(world: World) -> Iterator[TensorVariable]:
    for variable in world.wrapped.values():
        real = variable.original if isinstance(variable, TensorVariable) else None
        if real is not None and has_history(real):
            assert isinstance(variable, TensorVariable)
            yield variable
