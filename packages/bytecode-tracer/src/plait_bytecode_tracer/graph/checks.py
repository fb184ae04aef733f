"""Checks in the graph: what is expected of data, in the place of a branch that raises otherwise.

Where a check fails, nothing of the call has happened yet, and it is made anew as plain Python,
which goes the other way. So what is checked need not be an error.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
from torch import fx

from plait_bytecode_tracer.aftermath.progress import changes_inputs, memory_of_inputs
from plait_bytecode_tracer.failing import is_undone
from plait_bytecode_tracer.graph.changes import changed_inputs
from plait_bytecode_tracer.shapes.policy import Checks
from plait_bytecode_tracer.values.variables import Known, SymbolVariable, TensorVariable
from plait_utils.checks import check, check_number
from plait_utils.wrappings import is_wrapper

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState


def can_check(state: TraceState) -> bool:
    """Whether the graph may fail here: all that it has done by then can be undone.

    Changes of the caller's tensors are undone by some backends only, which `aftermath` looks at.
    """
    allowed = state.policy.checks
    if allowed is Checks.NEVER or state.scope.parent is not None or state.ambient.has_entered:
        return False
    if not all(map(is_undone, state.graph.nodes)):
        return False
    return allowed is Checks.ANYWHERE or not _may_have_changed(state)


def _may_have_changed(state: TraceState) -> bool:
    """Whether the graph may have changed tensors of the caller's by now."""
    nodes = state.graph.nodes
    if changed_inputs(state) or any(map(_is_mutable, nodes)):
        return True
    memory = memory_of_inputs(nodes)
    return any(changes_inputs(node, memory) for node in nodes)


def _is_mutable(node: fx.Node) -> bool:
    """Whether an operator of the dispatcher changes an argument, which names do not always tell."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def note_check(state: TraceState) -> None:
    """The graph may fail here."""
    state.has_checks = True
    if not state.checks_after_changes:
        state.checks_after_changes = _may_have_changed(state)


def check_truth(state: TraceState, value: TensorVariable, expected: bool) -> bool:
    """Let the graph check that a tensor of one element is true, or not; whether it can."""
    fake = value.fake
    sizes = tuple(fake.shape)
    if any(size != 1 for size in sizes if isinstance(size, int)) or not can_check(state):
        return False
    if not all(isinstance(size, int) for size in sizes) or is_wrapper(fake):
        return False
    if fake.dtype is not torch.bool:
        test = operator.ne if expected else operator.eq
        value = _emitted(state, test, [value, Known(0)])
    elif not expected:
        value = _emitted(state, torch.logical_not, [value])
    node, _ = state.emit("call_function", check, [value], {})
    state.checks.append(node)
    note_check(state)
    return True


def _emitted(state: TraceState, function: object, args: list[object]) -> TensorVariable:
    node, result = state.emit("call_function", function, args, {})
    return TensorVariable(node, result)


def check_number_truth(state: TraceState, value: SymbolVariable, expected: bool) -> bool:
    """The same for a number that depends on data, of which nothing is known yet."""
    if value.owner.known_truth(value) is not None or not can_check(state):
        return False
    state.emit("call_function", check_number, [value, Known(expected)], {})
    note_check(state)
    return True
