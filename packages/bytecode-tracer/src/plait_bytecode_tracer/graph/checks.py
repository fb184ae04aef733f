"""Checks in the graph: what is expected of data, in the place of a branch that raises otherwise.

Where a check fails, nothing of the call has happened yet, and it is made anew as plain Python,
which goes the other way. So what is checked need not be an error.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from plait_bytecode_tracer.failing import changes_unseen, is_undone
from plait_bytecode_tracer.graph.changes import changed_inputs
from plait_bytecode_tracer.values.variables import Known, SymbolVariable, TensorVariable
from plait_utils.checks import check, check_number
from plait_utils.wrappings import is_wrapper

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState


def can_check(state: TraceState) -> bool:
    """Whether the graph may fail here: all that it has done by then can be undone."""
    if not state.policy.checks or state.scope.parent is not None or state.ambient.modes:
        return False
    if state.versions_before or changed_inputs(state):
        return False
    return all(is_undone(node) and not changes_unseen(node) for node in state.graph.nodes)


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
    state.has_checks = True
    return True


def _emitted(state: TraceState, function: object, args: list[object]) -> TensorVariable:
    node, result = state.emit("call_function", function, args, {})
    return TensorVariable(node, result)


def check_number_truth(state: TraceState, value: SymbolVariable, expected: bool) -> bool:
    """The same for a number that depends on data, of which nothing is known yet."""
    if value.owner.known_truth(value) is not None or not can_check(state):
        return False
    state.emit("call_function", check_number, [value, Known(expected)], {})
    state.has_checks = True
    return True
