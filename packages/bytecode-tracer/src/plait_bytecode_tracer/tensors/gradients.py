"""Attributes of tensors that belong to autograd: `grad`, `grad_fn`, `is_leaf`."""

from __future__ import annotations

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.values.variables import Known, TensorVariable, Variable


def is_leaf(state: TraceState, owner: TensorVariable) -> bool:
    """Whether autograd has not made a tensor, guarded for those of the caller."""
    leaf = True
    if owner.source is not None and owner.original is not None:
        leaf = owner.original.is_leaf
        text = f"{owner.source.text}.is_leaf is {leaf}"
        state.guard(owner.source, f"{{}}.is_leaf is {leaf}", text)
    return leaf and owner.fake.is_leaf  # by writes in the trace it may cease to be one


def gradient(frame: Frame, owner: TensorVariable) -> Variable:
    """`owner.grad`, of a leaf: of others Python warns."""
    state = frame.state
    if not is_leaf(state, owner):
        raise TraceBreakError("GB0007", "the attribute 'grad' of a tensor that is no leaf")
    if owner.original is None or owner.source is None:
        return constant(None)
    written = state.attributes.get(id(owner.original), {}).get("grad")
    if written is not None:
        return written
    return state.wrap(owner.original.grad, owner.source.attribute("grad"))


def gradient_function(frame: Frame, owner: TensorVariable) -> Variable:
    """`owner.grad_fn`, where there is none."""
    if not is_leaf(frame.state, owner):
        raise TraceBreakError("GB0007", "the attribute 'grad_fn' of a tensor")
    return constant(None)


def set_gradient(frame: Frame, owner: TensorVariable, value: Variable) -> None:
    """`owner.grad = value`, written after the graph has run."""
    if owner.original is None or not (_is_none(value) or _fits(owner, value)):
        raise TraceBreakError("GB0007", "a write to the attribute 'grad' of a tensor")
    if not is_leaf(frame.state, owner):
        raise TraceBreakError("GB0007", "a write to 'grad' of a tensor that is no leaf")
    state = frame.state
    state.attributes.setdefault(id(owner.original), {})["grad"] = value
    state.owners[id(owner.original)] = owner


def _is_none(value: Variable) -> bool:
    return isinstance(value, Known) and value.value is None


def _fits(owner: TensorVariable, value: Variable) -> bool:
    """Whether autograd takes a tensor as the gradient of another."""
    if not isinstance(value, TensorVariable) or value is owner:
        return False
    one, other = owner.fake, value.fake
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
