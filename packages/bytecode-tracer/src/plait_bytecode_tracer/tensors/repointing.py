"""`tensor.data = other`: the tensor stays the same object, over the memory of another.

In the graph it goes on as an alias of the other's data. A tensor of the caller's is pointed there
after the graph has run. What autograd has recorded of a tensor stays with the object, so one that
needs gradients may not be used under gradients after that: the call goes on after the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.failing import is_change
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.outside.tensors import guard_requires_grad
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.gradients import is_leaf
from plait_bytecode_tracer.tensors.patches import refuse_modes
from plait_bytecode_tracer.values.variables import SequenceVariable, TensorVariable, Variable

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def set_data(frame: Frame, owner: TensorVariable, value: Variable) -> None:
    """`owner.data = value`. Raises TraceBreakError where more would show than the new data."""
    state = frame.state
    if owner is value:
        return  # it stays where it is, as in `module.to()` of what it is already
    refuse_modes(state, "data that is set")
    if not isinstance(value, TensorVariable) or not _are_plain(owner, value):
        raise _refused("what is no plain tensor")
    if any(each.fake._has_symbolic_sizes_strides for each in (owner, value)):
        raise TraceBreakError("GB0009", "the data of a tensor of any size, which is set")
    if state.scope.parent is not None or state.ambient.inference or _has_views(state, owner):
        raise _refused("a tensor with views, or in a transform")
    if owner.fake.requires_grad and not (value.fake.is_floating_point() or value.fake.is_complex()):
        raise _refused("a tensor that needs gradients to integers")
    if owner.source is None:
        if owner.fake.requires_grad or id(owner.fake) in state.derivatives.gradients:
            raise _refused("a tensor with gradients that the code has made")
    else:
        _require_apart(state, owner)
    needs_gradient = owner.fake.requires_grad
    node, fake = state.emit("call_function", getattr, [value, constant("data")], {})
    state.mutates_tensors = True
    if owner.source is not None:
        written = state.world.attributes.setdefault(id(owner.original), {})
        written.pop("data", None)  # it comes after what was written before
        written["data"] = TensorVariable(node, fake)
        state.world.owners[id(owner.original)] = owner
    if needs_gradient:
        with state.fake_mode, torch.enable_grad():
            fake = fake.detach().requires_grad_()
    owner.node, owner.fake = node, fake
    if owner.source is not None:
        state.derivatives.repointed[id(fake)] = owner


def _refused(what: str) -> TraceBreakError:
    return TraceBreakError("GB0007", f"a write to the attribute 'data' of {what}")


def _are_plain(owner: TensorVariable, value: TensorVariable) -> bool:
    """Whether torch points one tensor to the memory of the other, and nothing else shows."""
    one, other = owner.fake, value.fake
    is_plain = owner.cls in _PLAIN and value.cls in _PLAIN and one.device == other.device
    both = (one, other)
    is_strided = all(each.layout is torch.strided and not each.is_inference() for each in both)
    is_signed = any(each.is_neg() or each.is_conj() for each in both)
    return is_plain and is_strided and not is_signed


def _has_views(state: TraceState, owner: TensorVariable) -> bool:
    """Whether autograd knows the tensor as a view, or as the base of one."""
    if owner.source is None and owner.fake._is_view():
        return True
    values = [node.meta.get("val") for node in state.graph.nodes]
    return any(isinstance(v, torch.Tensor) and v._base is owner.fake for v in values)


def _require_apart(state: TraceState, owner: TensorVariable) -> None:
    """A tensor of the caller's is a leaf, and nothing that was recorded before uses it."""
    if owner.original is None or not is_leaf(state, owner):
        raise _refused("a tensor with a history")
    guard_requires_grad(state)
    if owner.fake.requires_grad and any(map(_is_recorded, owner.node.users)):
        raise _refused("a tensor that was used under gradients")


def _is_recorded(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, list | tuple) or (
        isinstance(value, torch.Tensor) and value.requires_grad
    )


def refuse_repointed(state: TraceState, target: object, args: Iterable[object]) -> None:
    """Break where gradients would go to a tensor of the caller's whose data was set, or where it
    would get a history: the graph has it apart."""
    given = [*_tensors(args)]
    gets_history = is_change(target) and any(each.fake.requires_grad for each in given)
    for each in given:
        is_apart = id(each.fake) in state.derivatives.repointed
        if is_apart and (gets_history or each.fake.requires_grad):
            raise TraceBreakError("GB0007", "a tensor under gradients, whose data was set")


def _tensors(args: Iterable[object]) -> Iterator[TensorVariable]:
    for arg in args:
        if isinstance(arg, TensorVariable):
            yield arg
        elif isinstance(arg, SequenceVariable):
            yield from _tensors(arg.items)
        elif isinstance(arg, list | tuple):
            yield from _tensors(arg)
