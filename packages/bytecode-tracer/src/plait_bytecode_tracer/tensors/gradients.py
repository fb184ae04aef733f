"""Attributes of tensors that belong to autograd: `grad`, `grad_fn`, `is_leaf`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.values.plain import are_plain_leaves
from plait_bytecode_tracer.values.variables import TensorVariable, Variable, is_none


def is_leaf(state: TraceState, owner: TensorVariable) -> bool:
    """Whether autograd has not made a tensor, guarded for those of the caller."""
    leaf = True
    if owner.source is not None and owner.original is not None:
        leaf = owner.original.is_leaf
        if id(owner.original) in state.derivatives.known_leaves:
            return owner.fake.is_leaf
        text = f"{owner.source.text}.is_leaf is {leaf}"
        state.guard(owner.source, f"{{}}.is_leaf is {leaf}", text)
    return leaf and owner.fake.is_leaf  # by writes in the trace it may cease to be one


def gradient(frame: Frame, owner: TensorVariable) -> Variable:
    """`owner.grad`, of a leaf: of others Python warns."""
    state = frame.state
    state.derivatives.reads += 1
    if id(owner.fake) in state.derivatives.retained:
        return state.derivatives.gradients.get(id(owner.fake), constant(None))
    if not is_leaf(state, owner):
        raise TraceBreakError("GB0007", "the attribute 'grad' of a tensor that is no leaf")
    if owner.original is None or owner.source is None:
        return state.derivatives.gradients.get(id(owner.fake), constant(None))
    written = state.world.attributes.get(id(owner.original), {}).get("grad")
    if written is not None:
        return written
    if owner.original.grad is None:
        state.derivatives.without_gradient.add(id(owner.original))
    return state.wrap(owner.original.grad, owner.source.attribute("grad"))


def gradient_function(frame: Frame, owner: TensorVariable) -> Variable:
    """`owner.grad_fn`, where there is none."""
    if not is_leaf(frame.state, owner):
        raise TraceBreakError("GB0007", "the attribute 'grad_fn' of a tensor")
    return constant(None)


def set_gradient(frame: Frame, owner: TensorVariable, value: Variable) -> None:
    """`owner.grad = value`, written after the graph has run."""
    if not (is_none(value) or _fits(owner, value)):
        raise TraceBreakError("GB0007", "a write to the attribute 'grad' of a tensor")
    state = frame.state
    is_retained = id(owner.fake) in state.derivatives.retained
    if not is_retained and not is_leaf(state, owner):
        raise TraceBreakError("GB0007", "a write to 'grad' of a tensor that is no leaf")
    if owner.original is None:
        state.derivatives.gradients[id(owner.fake)] = value
        return
    key = id(owner.original)
    if (
        is_none(value) and key in state.derivatives.without_gradient
    ):  # as it is before each such call
        state.world.attributes.get(key, {}).pop("grad", None)
        return
    state.world.attributes.setdefault(key, {})["grad"] = value
    state.world.owners[key] = owner


def leaf_of(state: TraceState, fake: torch.Tensor) -> TensorVariable:
    """The variable of a leaf, an input of the graph or made in the call, by its fake."""
    for variable in state.world.wrapped.values():
        if isinstance(variable, TensorVariable) and variable.fake is fake:
            return variable
    for node in state.graph.nodes:
        if node.meta.get("val") is fake and node.op != "placeholder":
            return TensorVariable(node, fake)
    raise TraceBreakError("GB0002", "backward() to a tensor that the trace does not know")


def guard_leaves(state: TraceState, leaves: Sequence[TensorVariable]) -> None:
    """These tensors are leaves without hooks, so that a backward pass ends there.

    Breaks where one is not now: the pass would go on in what was recorded before the call, or
    call somebody.
    """
    outside = [leaf for leaf in leaves if leaf.original is not None and leaf.source is not None]
    real = [leaf.original for leaf in outside if leaf.original is not None]
    if not are_plain_leaves(*real):
        text = "backward() to tensors with a history from before the call, or with hooks"
        raise TraceBreakError("GB0002", text)
    sources = ", ".join(leaf.source.code for leaf in outside if leaf.source is not None)
    state.derivatives.known_leaves.update(map(id, real))
    check = state.constants.name(are_plain_leaves)
    state.guard(None, f"{check}({sources})", "gradients end in leaves without hooks")


def guard_no_anomaly(state: TraceState) -> None:
    """Autograd does not look for the source of errors and NaN, which keeps stacks of its own."""
    if torch.is_anomaly_enabled():
        raise TraceBreakError("GB0002", "autograd's detection of anomalies")
    off = Mode(torch.is_anomaly_enabled, False)
    state.require(None, Kind.MODE, off, "autograd detects no anomalies")


def _fits(owner: TensorVariable, value: Variable) -> bool:
    """Whether autograd takes a tensor as the gradient of another."""
    if not isinstance(value, TensorVariable) or value is owner:
        return False
    one, other = owner.fake, value.fake
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
