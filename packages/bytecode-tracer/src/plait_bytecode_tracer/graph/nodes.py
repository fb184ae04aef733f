"""Nodes of the graph: what they call is run on fake tensors as they are added."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.failing import (
    CHANGES,
    changes_beside_errors,
    is_change,
    is_fallible,
    is_opaque,
    is_printed,
    not_retraceable,
    require_handled,
    require_retraceable,
    require_undone,
)
from plait_bytecode_tracer.graph.arguments import map_variables
from plait_bytecode_tracer.graph.changes import changed_inputs
from plait_bytecode_tracer.graph.failures import failing_operation
from plait_bytecode_tracer.graph.shown import mark_shown
from plait_bytecode_tracer.shapes.tensor_sizes import with_read_sizes
from plait_bytecode_tracer.shapes.unbacked import require_checked, require_checked_result
from plait_bytecode_tracer.shapes.uses import check_result, check_use
from plait_bytecode_tracer.tensors.ambient import outside_inference
from plait_bytecode_tracer.tensors.dtypes import is_doubtful, require_kernel
from plait_bytecode_tracer.tensors.function_surroundings import refuse_surroundings
from plait_bytecode_tracer.tensors.in_place import require_possible, require_unhooked
from plait_bytecode_tracer.tensors.patches import guard_code, require_own_operation
from plait_bytecode_tracer.tensors.recurrent import call_of_one_step
from plait_bytecode_tracer.tensors.resizing import refuse_resized
from plait_bytecode_tracer.tensors.scalars import with_stand_ins
from plait_bytecode_tracer.tensors.wrappers import watched
from plait_bytecode_tracer.values.variables import Known, TensorVariable
from plait_utils.open_functions import open_call

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState
    from plait_bytecode_tracer.tensors.scopes import Scope


def emit(
    state: TraceState, kind: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[fx.Node, Any]:
    """Add a node and run it on fake tensors. Arguments are variables or containers."""
    from plait_bytecode_tracer.shapes.data import check_assumed
    from plait_bytecode_tracer.tensors.repointing import refuse_repointed

    _guard_target(state, kind, target, args)
    if state.derivatives.requiring and state.grad_enabled:
        raise TraceBreakError("GB0002", "gradients of a tensor that was made without any")
    if state.derivatives.repointed and state.grad_enabled and not _detaches(target, args):
        refuse_repointed(state, target, [*args, *kwargs.values()])
    device = state.ambient.device_for(target, kwargs)
    if device is not None:
        kwargs = {**kwargs, "device": Known(device)}
    args = with_read_sizes(state, target, args)
    if state.symbols is not None:
        check_use(target, args, kwargs)
    node_args = _node_arguments(state, tuple(args))
    node_kwargs = _node_arguments(state, kwargs)
    fake_args, fake_kwargs = _fake_arguments(state, tuple(args)), _fake_arguments(state, kwargs)
    may_fail = is_fallible(target, fake_args)
    if may_fail and _is_watched(state):
        changed = bool(changed_inputs(state))
        is_kept = changed and not state.policy.watched_changes
        require_retraceable(_nodes(state), target, fake_args, is_changed=is_kept)
        state.watched_changes |= changed
    if may_fail or is_opaque(target):
        mark_shown(state)
        is_handled = _is_handled(state)
        require_handled(target, is_handled)
        state.must_be_undone |= is_handled
    require_checked(state, target, (fake_args, fake_kwargs))
    if "out" in kwargs:
        refuse_resized(state, kind, target, fake_args, fake_kwargs, kwargs["out"])
    try:
        result = state.run(kind, target, fake_args, fake_kwargs)
    except TraceBreakError as error:
        from plait_bytecode_tracer.shapes.data import depends_on_data
        from plait_bytecode_tracer.shapes.read_ints import ask_for_operands
        from plait_bytecode_tracer.tensors.values import with_numbers

        cause = error.__cause__
        if not isinstance(cause, Exception) or not depends_on_data(cause):
            raise ask_for_operands(state, error, (fake_args, fake_kwargs)) from cause
        given = with_numbers(state, args, kwargs)
        if given is not None:
            return state.emit(kind, target, *given)
        scaled = with_stand_ins(fake_kwargs)
        if scaled is None:
            policy = state.policy
            if state.symbols is not None or not (policy.data_dependent or policy.data_sizes):
                raise
            state.need_symbols()
        result = state.run(kind, target, fake_args, scaled or fake_kwargs)
    if is_opaque(target):
        refuse_surroundings(target, result)
    check_assumed(state, target)
    require_checked_result(state, target, result)
    if state.symbols is not None:
        check_result(target, result, args, kwargs)
    state.pace.note_operation()
    require_unhooked(state.derivatives.hooks)
    if is_change(target) and _is_watched(state) and changed_inputs(state):
        _note_change(state, target, fake_args)
    node = state.graph.create_node(kind, target, node_args, node_kwargs)
    node.meta["val"] = result
    state.mark(node)
    state.seeds.note(state, node)
    if state.must_be_undone:
        require_undone(node)
    if not state.mutates_tensors:
        state.mutates_tensors = CHANGES in node.meta
    return node, result


def _guard_target(state: TraceState, kind: str, target: Any, args: Sequence[Any]) -> None:
    """What a node calls stays torch's own."""
    tensors = [arg for arg in args if isinstance(arg, TensorVariable)]
    if tensors:
        require_own_operation(state, kind, target, tensors[0].cls)
    if isinstance(target, types.FunctionType) and target.__module__.startswith("torch"):
        guard_code(state, target)


def _is_watched(state: TraceState) -> bool:
    """Whether somebody would miss an error that only the graph's run raises."""
    prints = any(is_printed(function) for function, _, _ in state.deferred)
    return prints or any(frame.is_handling() for frame in state.frames.running)


def _note_change(state: TraceState, target: Any, args: Sequence[Any]) -> None:
    """A tensor of the caller's is changed where somebody would miss an error of the graph's run.

    A graph that fails must then have changed nothing, which not all backends can do.
    """
    if not changes_beside_errors(_nodes(state), target, args):
        return
    if not state.policy.watched_changes:
        raise not_retraceable(target)
    state.watched_changes = True


def _detaches(target: Any, args: Sequence[Any]) -> bool:
    """Whether no gradient goes through a node."""
    return target == "detach" or (target is getattr and args[1].value == "data")


def _is_handled(state: TraceState) -> bool:
    """Whether code handles an error that only the graph's run raises."""
    from plait_bytecode_tracer.frames.handlers import sees_errors

    return any(map(sees_errors, state.frames.running))


def _nodes(state: TraceState) -> Iterator[fx.Node]:
    """The nodes of the graph that is being built, and of those around it."""
    scope: Scope | None = state.scope
    while scope is not None:
        yield from scope.graph.nodes
        scope = scope.parent


def run(state: TraceState, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation on fake tensors, under the modes of the trace."""
    try:
        require_possible(target, args, kwargs)
        if is_doubtful(target, args, kwargs):
            with state.ambient.applied():
                require_kernel(target, args, kwargs)
    except Exception as error:
        raise failing_operation(target, error) from error
    with (
        state.fake_mode,
        state.ambient.applied(),
        torch.set_grad_enabled(state.grad_enabled),
    ):
        try:
            made = open_call(kind, target, args, kwargs)
            if made is not NotImplemented:
                return made
            if state.class_codes:
                return watched(state.class_codes.values(), kind, target, args, kwargs)
            return outside_inference(functools.partial(_call, kind, target, args, kwargs))
        except TraceBreakError:
            raise
        except Exception as error:
            raise failing_operation(target, error) from error


def _call(kind: str, target: Any, args: Any, kwargs: Any) -> Any:
    if kind == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    made = call_of_one_step(target, args, kwargs)
    return target(*args, **kwargs) if made is NotImplemented else made


def _node_arguments(state: TraceState, value: Any) -> Any:
    return map_variables(
        value, lambda t: state.scope.local(t.node), lambda n: _local(state, n.owner.node(n))
    )


def _local(state: TraceState, value: Any) -> Any:
    """A number of the call in the graph that is being built."""
    return state.scope.local(value) if isinstance(value, fx.Node) else value


def _fake_arguments(state: TraceState, value: Any) -> Any:
    return map_variables(value, lambda tensor: tensor.fake, lambda n: n.owner.symbolic(n))
