"""The backward of a function with gradients of its own, traced to know what it does and gives.

It runs as it is, inside the graph's `torch.autograd.grad`. So it must do nothing but compute,
and read nothing that the trace has changed.
"""

from __future__ import annotations

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.statics import guard_class, static_attribute
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.stand_ins import FunctionCall, Given
from plait_bytecode_tracer.values.variables import (
    Known,
    ObjectVariable,
    SequenceVariable,
    TensorVariable,
    Variable,
)


def has_changed_objects(state: TraceState) -> bool:
    """Whether the trace has changed anything but the gradients of tensors."""
    tables = [set(table) - {"grad"} for table in state.world.attributes.values()]
    tables += [set(tensor.attributes or {}) for tensor in state.world.marked_tensors]
    return bool(state.world.changed or state.deferred or state.world.context or any(tables))


def trace_backward(frame: Frame, call: FunctionCall) -> None:
    """Learn what the backward of a call gives; break where it does more than to compute."""
    state, name = frame.state, call.cls.__name__
    if call.given:
        return
    if has_changed_objects(state):
        raise TraceBreakError("GB0002", f"the backward of {name} after objects were changed")
    if call.takes_keywords or call.scope.parent is not state.scope:
        raise TraceBreakError("GB0002", f"the backward of {name}, which was called elsewhere")
    if "materialize_grads" in call.context.attributes:
        raise TraceBreakError("GB0002", f"the backward of {name}, which may be given no gradients")
    before, reads = state.effects(), state.derivatives.reads
    result, gradients = _scratch_backward(frame, call)
    if state.effects() != before or state.derivatives.reads != reads:
        raise TraceBreakError("GB0002", f"the backward of {name}, which changes objects")
    is_tuple = isinstance(result, SequenceVariable) and result.kind is tuple
    items = list(result.items) if isinstance(result, SequenceVariable) and is_tuple else [result]
    if len(items) != len(call.args):
        raise TraceBreakError("GB0002", f"the backward of {name}, which gives {len(items)}")
    pairs = zip(call.args, items, strict=True)
    call.given = [
        _given(item, gradients, name) for arg, item in pairs if isinstance(arg, TensorVariable)
    ]


def _scratch_backward(frame: Frame, call: FunctionCall) -> tuple[Variable, list[TensorVariable]]:
    """What the backward returns, traced into the graph of the forward, and what it was given."""
    from plait_bytecode_tracer.frames.calls import call as call_variable

    state = frame.state
    outer, enabled, mutates = state.scope, state.grad_enabled, state.mutates_tensors
    state.scope, state.grad_enabled, state.mutates_tensors = call.scope, False, False
    state.is_direct = False
    try:
        gradients = [_gradient(state, call, n) for n in range(len(call.outputs))]
        context = ObjectVariable(torch.autograd.function.FunctionCtx)
        context.attributes.update(call.context.attributes)
        kept = context.attributes.pop("to_save", SequenceVariable([], tuple))
        context.attributes["saved_tensors"] = kept
        guard_class(frame, call.cls, "backward")
        guard_class(frame, call.cls, "vjp")
        function = _backward_of(call.cls)
        result = call_variable(frame, constant(function), [context, *gradients], {})
        if state.mutates_tensors or state.grad_enabled:
            text = f"the backward of {call.cls.__name__}, which changes tensors in place"
            raise TraceBreakError("GB0002", text)
        return result, gradients
    except PythonError as error:
        raise TraceBreakError("GB0006", f"{error} is raised in a backward") from error
    finally:
        state.scope, state.grad_enabled, state.mutates_tensors = outer, enabled, mutates


def _backward_of(cls: type) -> object:
    own = static_attribute(cls, "backward")
    base = static_attribute(torch.autograd.Function, "backward")
    static = static_attribute(cls, "vjp") if own is base else own
    return static.__func__ if isinstance(static, staticmethod) else static


def _gradient(state: TraceState, call: FunctionCall, place: int) -> TensorVariable:
    """A gradient that a backward is given."""
    output = call.outputs[place].fake
    node = call.scope.graph.placeholder(f"gradient{len(call.scope.graph.nodes)}")
    fake = state.run("call_function", torch.empty_like, (output.detach(),), {})
    node.meta["val"] = fake
    return TensorVariable(node, fake)


def _given(item: Variable, gradients: list[TensorVariable], name: str) -> Given:
    if isinstance(item, TensorVariable):
        places = [n for n, gradient in enumerate(gradients) if gradient is item]
        return places[0] if places else item.fake
    if isinstance(item, Known) and item.value is None:
        return None
    raise TraceBreakError("GB0009", f"what the backward of {name} returns")
