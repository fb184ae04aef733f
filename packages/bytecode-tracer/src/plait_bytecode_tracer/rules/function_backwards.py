"""The backward of a function with gradients of its own, traced to know what it does and gives.

It runs as it is, inside the graph's `torch.autograd.grad`. So it must do nothing but compute,
and read nothing that the trace has changed.
"""

from __future__ import annotations

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.statics import guard_class, static_attribute
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.stand_ins import Formula, FunctionCall, Given
from plait_bytecode_tracer.values.variables import (
    ObjectVariable,
    SequenceVariable,
    TensorVariable,
    Variable,
    is_none,
)


def has_changed_objects(state: TraceState) -> bool:
    """Whether the trace has changed anything but the gradients of tensors."""
    tables = [set(table) - {"grad"} for table in state.world.attributes.values()]
    tables += [set(tensor.attributes or {}) for tensor in state.world.marked_tensors]
    return bool(state.world.changed or state.deferred or state.world.context or any(tables))


def trace_backward(frame: Frame, call: FunctionCall, *, create_graph: bool = False) -> None:
    """Learn what the backward of a call gives; break where it does more than to compute.

    Where it makes a graph of the gradients, learn by what formula.
    """
    if create_graph and call.formula is None:
        nodes = len(call.scope.graph.nodes)
        items, gradients = _traced(frame, call, enabled=True)
        call.formula = _formula(call, nodes, items, gradients)
    elif not create_graph and not call.given:
        items, gradients = _traced(frame, call, enabled=False)
        call.given = [_given(item, gradients, call.cls.__name__) for item in items]


def backward_formula(frame: Frame, call: FunctionCall) -> Formula:
    """What the backward of a call computes. Raises TraceBreakError where it does more."""
    nodes = len(call.scope.graph.nodes)
    items, gradients = _traced(frame, call, enabled=False)
    return _formula(call, nodes, items, gradients)


def _traced(
    frame: Frame, call: FunctionCall, *, enabled: bool
) -> tuple[list[Variable], list[TensorVariable]]:
    """What the backward returns for the tensors among the arguments, and what it was given."""
    state, name = frame.state, call.cls.__name__
    if has_changed_objects(state):
        raise TraceBreakError("GB0002", f"the backward of {name} after objects were changed")
    if call.takes_keywords or call.scope.parent is not state.scope:
        raise TraceBreakError("GB0002", f"the backward of {name}, which was called elsewhere")
    if "materialize_grads" in call.context.attributes:
        raise TraceBreakError("GB0002", f"the backward of {name}, which may be given no gradients")
    before, reads = state.effects(), state.derivatives.reads
    result, gradients = _scratch_backward(frame, call, enabled)
    if state.effects() != before or state.derivatives.reads != reads:
        raise TraceBreakError("GB0002", f"the backward of {name}, which changes objects")
    is_tuple = isinstance(result, SequenceVariable) and result.kind is tuple
    items = list(result.items) if isinstance(result, SequenceVariable) and is_tuple else [result]
    if len(items) != len(call.args):
        raise TraceBreakError("GB0002", f"the backward of {name}, which gives {len(items)}")
    pairs = zip(call.args, items, strict=True)
    return [item for arg, item in pairs if isinstance(arg, TensorVariable)], gradients


def _formula(
    call: FunctionCall, start: int, items: list[Variable], gradients: list[TensorVariable]
) -> Formula:
    """What was traced into the graph of the forward after its first nodes."""
    name = call.cls.__name__
    nodes = [node for node in list(call.scope.graph.nodes)[start:] if node.op != "placeholder"]
    if any(node.op not in ("call_function", "call_method") for node in nodes):
        raise TraceBreakError("GB0002", f"the backward of {name}, which calls graphs of its own")
    results: list[fx.Node | None] = []
    for item in items:
        if isinstance(item, TensorVariable):
            results.append(call.scope.local(item.node))
            continue
        _check_none(item, name)
        results.append(None)
    return Formula(tuple(nodes), tuple(each.node for each in gradients), tuple(results))


def _scratch_backward(
    frame: Frame, call: FunctionCall, create_graph: bool
) -> tuple[Variable, list[TensorVariable]]:
    """What the backward returns, traced into the graph of the forward, and what it was given."""
    state = frame.state
    outer, enabled, mutates = state.scope, state.grad_enabled, state.mutates_tensors
    state.scope, state.grad_enabled, state.mutates_tensors = call.scope, create_graph, False
    state.is_direct = False
    try:
        gradients = [_gradient(state, call, n) for n in range(len(call.outputs))]
        context = ObjectVariable(torch.autograd.function.FunctionCtx)
        context.attributes.update(call.context.attributes)
        kept = context.attributes.pop("to_save", SequenceVariable([], tuple))
        context.attributes["saved_tensors"] = kept
        guard_class(frame, call.cls, "backward")
        guard_class(frame, call.cls, "vjp")
        function = backward_of(call.cls)
        held = dict(context.attributes)
        result = frame.call(constant(function), [context, *gradients], {})
        if context.attributes.keys() != held.keys() or any(
            context.attributes[name] is not value for name, value in held.items()
        ):
            text = f"the backward of {call.cls.__name__}, which changes its context"
            raise TraceBreakError("GB0002", text)
        if state.mutates_tensors or state.grad_enabled is not create_graph:
            text = f"the backward of {call.cls.__name__}, which changes tensors in place"
            raise TraceBreakError("GB0002", text)
        return result, gradients
    except PythonError as error:
        raise TraceBreakError("GB0006", f"{error} is raised in a backward") from error
    finally:
        state.scope, state.grad_enabled, state.mutates_tensors = outer, enabled, mutates


def backward_of(cls: type) -> object:
    """The function that computes the gradients of a `torch.autograd.Function`."""
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
    _check_none(item, name)
    return None


def _check_none(item: Variable, name: str) -> None:
    if not is_none(item):
        raise TraceBreakError("GB0009", f"what the backward of {name} returns")
