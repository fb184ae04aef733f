"""`backward()` inside traced code: gradients as results of the graph, and what becomes of them.

The graph computes the gradients of all leaves that the pass reaches. A leaf without a gradient
gets a new one, which is an effect of the trace; to one that is there the new one is added in
place, in the graph, or, where gradients are differentiated themselves, to a new one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.rules.function_backwards import trace_backward
from plait_bytecode_tracer.rules.modes import set_grad_enabled
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.rules.warnings_ import action_for
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.accumulation import first_gradient, warn_of_cycle
from plait_bytecode_tracer.tensors.bodies import result_of
from plait_bytecode_tracer.tensors.gradients import (
    gradient,
    guard_leaves,
    guard_no_anomaly,
    leaf_of,
    set_gradient,
)
from plait_bytecode_tracer.tensors.patches import refuse_modes
from plait_bytecode_tracer.tensors.reach import reach_of
from plait_bytecode_tracer.values.variables import (
    SequenceVariable,
    TensorVariable,
    Variable,
    is_none,
)

_WARNING = (
    "Using backward() with create_graph=True will create a reference cycle between the parameter "
    "and its gradient which can cause a memory leak."
)


@builtin(torch.Tensor.backward)
def method_backward(
    frame: Frame,
    owner: Variable,
    gradient: Variable | None = None,
    retain_graph: Variable | None = None,
    create_graph: Variable | None = None,
    inputs: Variable | None = None,
) -> Variable:
    """`tensor.backward(...)`."""
    return backward(frame, owner, gradient, retain_graph, create_graph, None, inputs)


@builtin(torch.autograd.backward)
def backward(
    frame: Frame,
    tensors: Variable,
    grad_tensors: Variable | None = None,
    retain_graph: Variable | None = None,
    create_graph: Variable | None = None,
    grad_variables: Variable | None = None,
    inputs: Variable | None = None,
) -> Variable:
    """`torch.autograd.backward(...)`, where nothing but operators runs in it."""
    state = frame.state
    _refuse_surroundings(state)
    if state.class_codes:
        raise TraceBreakError("GB0002", "backward() where tensor subclasses are about")
    if grad_variables is not None and not is_none(grad_variables):
        raise TraceBreakError("GB0002", "backward() with the name that grad_tensors had")
    creates = create_graph is not None and bool(plain_value(create_graph))
    outputs = _tensors(frame, tensors)
    reach = reach_of(output.fake for output in outputs)
    if reach.runs_python:
        raise TraceBreakError("GB0002", "backward() through Python that the trace does not know")
    for call in reach.calls:
        trace_backward(frame, call, create_graph=creates)
    leaves = [leaf_of(state, fake) for fake in reach.leaves]
    guard_leaves(state, leaves)
    retained = list(state.derivatives.retained.values())
    if inputs is not None and not is_none(inputs):
        leaves = _chosen(frame, inputs, leaves)
        retained = [each for each in retained if _leads_to(each, leaves)]
    if any(each.fake._backward_hooks for each in retained):  # what they give is kept
        raise TraceBreakError("GB0002", "backward() where hooked tensors keep their gradients")
    options = {"retain_graph": retain_graph or constant(None), "allow_unused": constant(True)}
    given = [SequenceVariable(list(outputs), list), SequenceVariable([*leaves, *retained], list)]
    if grad_tensors is not None:
        options["grad_outputs"] = grad_tensors
    if creates:
        options["create_graph"] = constant(True)
        _warn_of_cycles(state)
    known = {id(node.meta.get("val")) for node in state.graph.nodes}
    node, found = state.emit("call_function", torch.autograd.grad, given, options)
    made = result_of(state, node, found)
    assert isinstance(made, SequenceVariable)
    _retain(frame, retained, made.items[len(leaves) :], creates)
    _accumulate(frame, leaves, made.items[: len(leaves)], known, creates)
    return constant(None)


def _leads_to(tensor: TensorVariable, leaves: Sequence[TensorVariable]) -> bool:
    """Whether a pass to these leaves comes by a tensor that they were used for."""
    reached = {id(fake) for fake in reach_of([tensor.fake]).leaves}
    return any(id(leaf.fake) in reached for leaf in leaves)


def _retain(
    frame: Frame,
    tensors: Sequence[TensorVariable],
    gradients: Sequence[Variable],
    creates: bool,
) -> None:
    """Give tensors that are no leaves their gradients: a copy of the first, or a sum."""
    state = frame.state
    enabled = state.grad_enabled
    set_grad_enabled(frame, constant(creates))
    for tensor, new in zip(tensors, gradients, strict=True):
        if not isinstance(new, TensorVariable):
            continue
        old = gradient(frame, tensor)
        if isinstance(old, TensorVariable):
            node, made = state.emit("call_function", torch.add, [old, new], {})
        else:
            contiguous = {"memory_format": constant(torch.contiguous_format)}
            node, made = state.emit("call_method", "clone", [new], contiguous)
        state.derivatives.gradients[id(tensor.fake)] = TensorVariable(node, made)
    set_grad_enabled(frame, constant(enabled))


def _refuse_surroundings(state: TraceState) -> None:
    """Break under what a backward pass of the graph would not go through as eager's does."""
    refuse_modes(state, "backward()")
    if torch._C._functorch.peek_interpreter_stack() is not None or state.scope.parent is not None:
        raise TraceBreakError("GB0002", "backward() inside a transform")
    if state.derivatives.hooks:  # they are there only after the graph has run
        raise TraceBreakError("GB0002", "backward() after hooks of the caller's tensors were set")
    guard_no_anomaly(state)


def _warn_of_cycles(state: TraceState) -> None:
    """Autograd's warning of such passes, which it gives once, from torch's own code."""
    ask = functools.partial(action_for, _WARNING, UserWarning, torch.autograd.graph.__name__, 0)
    if ask() == "error":
        raise TraceBreakError("GB0005", "backward() with create_graph warns, which is an error")
    state.require(None, Kind.MODE, Mode(ask, ask()), "what is done with backward()'s warning")
    state.deferred.append((constant(warn_of_cycle), [], {}))


def _tensors(frame: Frame, value: Variable) -> list[TensorVariable]:
    found = [value] if isinstance(value, TensorVariable) else list(elements(frame, value))
    plain = [each for each in found if isinstance(each, TensorVariable)]
    if len(plain) != len(found) or not plain:
        raise TraceBreakError("GB0002", "backward() from what are no plain tensors")
    return plain


def _chosen(
    frame: Frame, inputs: Variable, reached: Sequence[TensorVariable]
) -> list[TensorVariable]:
    """The leaves among `inputs=` that are reached; the gradients of others stay as they are."""
    wanted = _tensors(frame, inputs)
    if any(each.fake.grad_fn is not None or not each.fake.requires_grad for each in wanted):
        raise TraceBreakError("GB0002", "backward() to inputs that are no leaves")
    chosen = {id(each.fake) for each in wanted}
    return [leaf for leaf in reached if id(leaf.fake) in chosen]


def _accumulate(
    frame: Frame,
    leaves: Sequence[TensorVariable],
    found: Sequence[Variable],
    known: set[int],
    creates: bool,
) -> None:
    """Make gradients those of their leaves, as autograd does in a pass that makes a graph of them
    or none."""
    state = frame.state
    pairs = [
        (leaf, new)
        for leaf, new in zip(leaves, found, strict=True)
        if isinstance(new, TensorVariable)
    ]
    if any(new.fake.layout is not torch.strided for _, new in pairs):
        raise TraceBreakError("GB0002", "backward() with sparse gradients")
    enabled = state.grad_enabled
    set_grad_enabled(frame, constant(creates))
    for leaf, new in pairs:
        old = gradient(frame, leaf)
        if not isinstance(old, TensorVariable):
            shared = constant(creates or id(new.fake) in known)
            node, made = state.emit("call_function", first_gradient, [new, leaf, shared], {})
        elif creates:
            node, made = state.emit("call_function", torch.add, [old, new], {})
        else:
            state.mutates_tensors = True
            state.emit("call_method", "add_", [old, new], {})
            continue
        known.add(id(new.fake))
        set_gradient(frame, leaf, TensorVariable(node, made))
    set_grad_enabled(frame, constant(enabled))
