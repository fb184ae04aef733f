"""Calls of functions with a cache for tensors that the same call has made.

Such a tensor is new in each call, so the cache does not hold it. The function is traced, and
called once more after the graph: that counts, keeps and drops what it does in Python. What
is kept can be found again only by who has the tensor, so it must not leave the call.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError
from plait_bytecode_tracer.failing import is_pure
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.values.keys import constant_key
from plait_bytecode_tracer.values.variables import Known, TensorVariable, Variable
from plait_utils import dataclass


@dataclass(slots=True)
class LastCall:
    """A call that is made after all else, of which these tensors nobody else may have."""

    function: Known
    args: list[Variable]
    kwargs: dict[str, Variable]
    tensors: list[TensorVariable] = field(default_factory=list)


def new_tensors(args: list[Variable], kwargs: dict[str, Variable]) -> list[TensorVariable]:
    """The arguments that are tensors, if the trace has made all of them; else none."""
    found = [v for v in (*args, *kwargs.values()) if isinstance(v, TensorVariable)]
    return [] if any(tensor.source is not None for tensor in found) else found


def call_for_tensors(
    frame: Frame,
    function: Known,
    args: list[Variable],
    kwargs: dict[str, Variable],
    before: Any,
) -> Variable:
    """The result of a first call for tensors of the trace; `before` tells effects so far."""
    state, name = frame.state, function.value.__wrapped__.__name__
    switched = state.grad_enabled is not state.grad_enabled_before or state.ambient.values
    again = any(made.function.value is function.value for made in state.last_calls)
    if not state.to_the_end or switched or again or state.ambient.device is not None:
        raise TraceBreakError("GB0009", f"a call of {name} for tensors, of which it keeps results")
    for value in (*args, *kwargs.values()):
        constant_key(frame, value)  # fails as Python does for what has no hash
    state.needs_end = True
    nodes, effects = len(state.graph.nodes), (before(), state.mutates_tensors)
    try:
        result = frame.call(constant(function.value.__wrapped__), args, kwargs)
    except PythonError as error:
        raise TraceBreakError("GB0006", f"{name}, which keeps results, fails: {error}") from error
    added = list(state.graph.nodes)[nodes:]
    if (before(), state.mutates_tensors) != effects or not all(map(is_pure, added)):
        raise TraceBreakError("GB0002", f"a call of {name}, which keeps results and has effects")
    state.last_calls.append(LastCall(function, list(args), dict(kwargs), new_tensors(args, kwargs)))
    return result


def is_tensor_call(args: list[Variable], kwargs: dict[str, Variable]) -> bool:
    """Whether a function with a cache is called for tensors that the trace has made."""
    return bool(new_tensors(args, kwargs))
