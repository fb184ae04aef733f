"""Hooks of tensors: traced into the graph, or registered after it on tensors of the caller's.

A hook on a tensor that the graph makes belongs to the graph: whoever computes gradients of the
graph must come through it. Such hooks must be traced themselves. A tensor of the caller's gets
its hooks when the graph has run, whatever they do: gradients come to it later than that.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.frames.inlining import inline
from plait_bytecode_tracer.outside.tensors import guard_requires_grad
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors import transforms
from plait_bytecode_tracer.tensors.gradients import is_leaf
from plait_bytecode_tracer.tensors.hook_bodies import trace_hook
from plait_bytecode_tracer.tensors.module_hooks import unnumbered
from plait_bytecode_tracer.values.variables import HookHandle, TensorVariable, Variable

_AFTER_ACCUMULATION = "register_post_accumulate_grad_hook"


def register(frame: Frame, owner: TensorVariable, name: str, function: Variable) -> Variable:
    """`owner.register_hook(function)`, or of the gradient that a leaf has accumulated."""
    if not owner.fake.requires_grad:
        raise TraceBreakError("GB0002", f"{name}() of a tensor that needs no gradient")
    if owner.source is not None:
        if name == _AFTER_ACCUMULATION and not is_leaf(frame.state, owner):
            raise TraceBreakError("GB0002", f"{name}() of a tensor that is no leaf")
        return _after_the_graph(frame.state, owner, name, [function])
    if name == _AFTER_ACCUMULATION or owner.fake.is_leaf or not frame.state.grad_enabled:
        raise TraceBreakError("GB0002", f"{name}() of a tensor that the code has made")
    return _in_the_graph(frame, owner, function)


def retain_grad(frame: Frame, owner: TensorVariable) -> Variable:
    """`owner.retain_grad()`: a leaf does so anyway.

    What the call makes and keeps to itself gets its gradients from passes of the call alone.
    """
    state = frame.state
    if not owner.fake.requires_grad:
        raise TraceBreakError("GB0002", "retain_grad() of a tensor that needs no gradient")
    if is_leaf(state, owner):
        guard_requires_grad(state)
        return constant(None)
    if owner.source is None:
        if not state.to_the_end or state.scope.parent is not None or owner.cls is not torch.Tensor:
            raise TraceBreakError("GB0002", "retain_grad() of a tensor that outlives the call")
        state.needs_end = True
        state.derivatives.retained[id(owner.fake)] = owner
        return constant(None)
    _after_the_graph(frame.state, owner, "retain_grad", [])
    return constant(None)


def _after_the_graph(
    state: TraceState, owner: TensorVariable, name: str, args: list[Variable]
) -> HookHandle:
    if state.scope.parent is not None:
        raise TraceBreakError("GB0002", f"{name}() inside a transform")
    if any(node.target is torch.autograd.grad for node in state.graph.nodes):
        raise TraceBreakError("GB0002", f"{name}() after gradients were computed")
    guard_requires_grad(state)
    version = None if is_leaf(state, owner) else owner.fake._version
    made = HookHandle(RemovableHandle, tensor=owner, method=name, args=args, version=version)
    state.derivatives.hooks.append(made)
    state.deferred.append((made, [], {}))
    return made


def _in_the_graph(frame: Frame, owner: TensorVariable, function: Variable) -> HookHandle:
    state = frame.state
    if not state.to_the_end:
        raise TraceBreakError("GB0002", "a hook of gradients whose closure or handle is used later")
    hook = trace_hook(frame, function, owner)
    fakes = [tensor.fake for tensor in hook.free]
    given = (owner.fake, hook.module, fakes)
    with unnumbered():
        real = state.run("call_function", transforms.register_hook, given, {})
    scope = state.scope
    free = tuple(scope.local(tensor.node) for tensor in hook.free)
    body = scope.add(hook.module)
    node = scope.graph.call_function(
        transforms.register_hook, (scope.local(owner.node), body, free)
    )
    state.pace.note_operation()
    state.mark(node)
    state.derivatives.late += hook.cells
    state.needs_end |= bool(hook.cells)
    return HookHandle(RemovableHandle, node=node, real=real)


_remove: Any = RemovableHandle.remove


@builtin(_remove)
def remove(frame: Frame, owner: Variable) -> Variable:
    """Remove a hook: a traced one has never been there."""
    state = frame.state
    if not isinstance(owner, HookHandle):
        return inline(frame, _remove, [owner], {})
    if any(node.target is torch.autograd.grad for node in state.graph.nodes):
        raise TraceBreakError("GB0002", "a hook that is removed after gradients were computed")
    if owner.tensor is not None:
        state.deferred.append((constant(_remove), [owner], {}))
    elif owner.node is not None:
        owner.real.remove()
        owner.node.graph.erase_node(owner.node)
        owner.node = None
    return constant(None)


def refuse_late_changes(state: TraceState, rebuilt: Container[int]) -> None:
    """Refuse hooks in the graph that would see the variables of their closures change.

    `rebuilt` has the ids of what leaves the trace.
    """
    for cell, content in state.derivatives.late:
        if cell.content is not content or id(cell) in rebuilt:
            raise TraceBreakError("GB0002", "a hook of gradients whose closure changes later")
