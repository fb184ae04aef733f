"""Automatic differentiation inside traced code: functions with gradients of their own, `grad`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.failing import mark_body, require_undone
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.graph.arguments import map_variables
from plait_bytecode_tracer.kernels.mentions import mentions_kernels
from plait_bytecode_tracer.objects.containers import hold, plain_value
from plait_bytecode_tracer.objects.statics import guard_class, static_attribute
from plait_bytecode_tracer.outside.tensors import guard_requires_grad
from plait_bytecode_tracer.rules.function_backwards import (
    backward_formula,
    backward_of,
    has_changed_objects,
    trace_backward,
)
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.bodies import result_of
from plait_bytecode_tracer.tensors.function_surroundings import has_surroundings
from plait_bytecode_tracer.tensors.gradients import guard_leaves, guard_no_anomaly, leaf_of
from plait_bytecode_tracer.tensors.patches import refuse_modes
from plait_bytecode_tracer.tensors.reach import reach_of
from plait_bytecode_tracer.tensors.replayed import ReplayedFunction, launches_kernels
from plait_bytecode_tracer.tensors.scopes import Scope
from plait_bytecode_tracer.tensors.stand_ins import Formula, FunctionCall, StandIn
from plait_bytecode_tracer.tensors.transforms import AutogradFunction, tensors_in
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    Known,
    ObjectVariable,
    SequenceVariable,
    TensorVariable,
    Variable,
)


@builtin(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]  # a classmethod
def apply(frame: Frame, owner: Variable, *args: Variable, **kwargs: Variable) -> Variable:
    """`Function.apply`: its forward; where gradients are recorded, a call of the function."""
    cls: type = hold(owner, Known).value
    state = frame.state
    tensors = [arg for arg in args if isinstance(arg, TensorVariable)]
    if state.grad_enabled and any(tensor.fake.requires_grad for tensor in tensors):
        return _recorded(frame, cls, list(args), kwargs)
    result, context = _forward(frame, cls, list(args), kwargs)
    marked = context.attributes.get("dirty_tensors")
    dirty = marked.items if isinstance(marked, SequenceVariable) else []
    kept = [tensor for tensor in tensors if not any(tensor is other for other in dirty)]
    return _as_results(frame, result, kept)


def _forward(
    frame: Frame, cls: type, args: list[Variable], kwargs: dict[str, Variable]
) -> tuple[Variable, ObjectVariable]:
    """What `forward` returns, and the context that it has filled."""
    context = ObjectVariable(torch.autograd.function.FunctionCtx)
    if any(isinstance(arg, TensorVariable) for arg in args):
        guard_requires_grad(frame.state)
    # A new tuple at each call, as in eager.
    flags: list[Variable] = [
        constant(isinstance(a, TensorVariable) and a.fake.requires_grad) for a in args
    ]
    context.attributes["needs_input_grad"] = SequenceVariable(flags, tuple)
    for name in ("forward", "setup_context"):
        guard_class(frame, cls, name)
    forward = constant(_function(cls, "forward"))
    setup = _function(cls, "setup_context")
    if setup is _function(torch.autograd.Function, "setup_context"):
        return frame.call(forward, [context, *args], kwargs), context
    result = frame.call(forward, args, kwargs)
    given = SequenceVariable(list(args), tuple)
    frame.call(constant(setup), [context, given, result], {})
    return result, context


def _function(cls: type, name: str) -> object:
    static = static_attribute(cls, name)
    return static.__func__ if isinstance(static, staticmethod) else static


def _as_results(frame: Frame, result: Variable, given: list[TensorVariable]) -> Variable:
    """What `apply` makes of what `forward` returns: an argument becomes another tensor."""
    if isinstance(result, SequenceVariable) and result.kind is tuple:
        items = [_as_results(frame, item, given) for item in result.items]
        return SequenceVariable(items, tuple)
    if isinstance(result, TensorVariable) and any(result is tensor for tensor in given):
        node, made = frame.state.emit("call_method", "view_as", [result, result], {})
        return frame.state.tensor_result(node, made)
    return result


def _recorded(
    frame: Frame, cls: type, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """A call of the function itself; its forward and its backward are traced to know what they
    return, and read, which is guarded.

    It runs as it is, once, when the graph is recorded: so it must find the world as the program
    would show it, and leave it unchanged. What else it computes with than its arguments may be
    another tensor or number in each call; then its call is that of the graphs of both.
    """
    state = frame.state
    refuse_modes(state, f"{cls.__name__}.apply")
    if state.made.is_made(cls):
        raise TraceBreakError("GB0002", f"{cls.__name__}.apply, a class that each call makes")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise TraceBreakError("GB0002", f"{cls.__name__}.apply inside a transform")
    if has_changed_objects(state):
        raise TraceBreakError("GB0002", f"{cls.__name__}.apply after objects were changed")
    before, reads = state.effects(), state.derivatives.reads
    call = _scratch_forward(frame, cls, args, kwargs)
    changes = state.effects() != before or (
        state.derivatives.reads != reads and state.world.attributes
    )
    if changes or "dirty_tensors" in call.context.attributes:
        raise TraceBreakError("GB0002", f"{cls.__name__}.apply, which changes what it is given")
    nodes = list(call.scope.graph.nodes)
    formula = _learned_backward(frame, call)
    has_kernels = launches_kernels(call.scope.graph) or mentions_kernels(backward_of(cls))
    if has_kernels or _reads_others(call):
        if formula is None:
            text = (
                f"{cls.__name__}.apply, whose backward is not known, and which reads other values"
            )
            raise TraceBreakError("GB0002", text)
        return _replayed(frame, call, formula, nodes)
    for node in reversed(list(call.scope.graph.nodes)[len(nodes) :]):
        call.scope.graph.erase_node(node)  # of the backward
    if not all(isinstance(a, TensorVariable) or _is_plain(a) for a in (*args, *kwargs.values())):
        raise TraceBreakError("GB0009", f"an argument of {cls.__name__}.apply")
    return _call(state, call, kwargs)


def _learned_backward(frame: Frame, call: FunctionCall) -> Formula | None:
    """What the backward of a call computes; None where that cannot be traced, and its code says
    that it works with nothing but what it is given. Raises TraceBreakError elsewhere."""
    before = frame.state.effects()
    try:
        return backward_formula(frame, call)
    except TraceBreakError:
        if frame.state.effects() != before or has_surroundings(backward_of(call.cls)):
            raise
        return None


def _reads_others(call: FunctionCall) -> bool:
    """Whether a function computes with values of the program's that are no arguments of it."""
    scope = call.scope
    given = {scope.local(a.node) for a in call.args if isinstance(a, TensorVariable)}
    return not given.issuperset(scope.free.values())


def _replayed(
    frame: Frame, call: FunctionCall, formula: Formula, nodes: Sequence[fx.Node]
) -> Variable:
    """A call of the graphs of a function's forward, which has these nodes, and backward."""
    module = ReplayedFunction(call, formula, nodes)
    tensors = [a.fake for a in call.args if isinstance(a, TensorVariable)]
    return _emit(frame.state, call, module, module.outer, {}, tensors)


def _is_plain(value: Variable) -> bool:
    return isinstance(value, Known) and is_constant(value.value)


def _scratch_forward(
    frame: Frame, cls: type, args: list[Variable], kwargs: dict[str, Variable]
) -> FunctionCall:
    """The call, with its forward traced into a graph that is thrown away."""
    state = frame.state
    outer, gradients = state.scope, state.grad_enabled
    mutates, state.mutates_tensors = state.mutates_tensors, False
    scratch = Scope(parent=outer)
    state.scope, state.grad_enabled = scratch, False
    state.is_direct = False
    try:
        result, context = _forward(frame, cls, args, kwargs)
        if state.mutates_tensors or state.grad_enabled:
            raise TraceBreakError("GB0002", f"{cls.__name__}.apply, which changes tensors in place")
    finally:
        state.scope, state.grad_enabled, state.mutates_tensors = outer, gradients, mutates
    is_tuple = isinstance(result, SequenceVariable) and result.kind is tuple
    found = list(hold(result, SequenceVariable).items) if is_tuple else [result]
    outputs = [output for output in found if isinstance(output, TensorVariable)]
    if len(outputs) != len(found):
        raise TraceBreakError("GB0009", f"what {cls.__name__}.forward returns")
    context.attributes["is_tuple"] = constant(is_tuple)
    marked = context.attributes.get("non_differentiable")
    unmoved = marked.items if isinstance(marked, SequenceVariable) else []
    constants = [n for n, output in enumerate(outputs) if any(output is u for u in unmoved)]
    return FunctionCall(cls, args, outputs, constants, context, scratch, bool(kwargs))


def _call(state: TraceState, call: FunctionCall, kwargs: dict[str, Variable]) -> Variable:
    args = call.args
    tensors = [a.fake for a in (*args, *kwargs.values()) if isinstance(a, TensorVariable)]
    scope = state.scope
    local = [scope.local(a.node) if isinstance(a, TensorVariable) else _plain(a) for a in args]
    named = {
        key: scope.local(a.node) if isinstance(a, TensorVariable) else _plain(a)
        for key, a in kwargs.items()
    }
    return _emit(state, call, AutogradFunction(call.cls), local, named, tensors)


def _emit(
    state: TraceState,
    call: FunctionCall,
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[torch.Tensor],
) -> Variable:
    """A node that calls the module, whose results have the history that the function gives them."""
    is_tuple = hold(call.context.attributes["is_tuple"], Known).value
    stand_in: Any = StandIn.apply
    results = state.run("call_function", stand_in, (call, *tensors), {})
    name = state.scope.add_module(module)
    node = state.scope.graph.call_module(name, tuple(args), dict(kwargs))
    state.pace.note_operation()
    state.mark(node)
    mark_body(node, call.scope.graph)
    if state.must_be_undone:
        require_undone(node)
    several = len(call.outputs) > 1
    node.meta["tells_gradients_apart"] = several and "materialize_grads" in call.context.attributes
    value = results if is_tuple else results[0]
    node.meta["val"] = value
    return result_of(state, node, value)


def _plain(value: Variable) -> Any:
    return hold(value, Known).value


@builtin(torch.autograd.grad)
def grad(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
    """`torch.autograd.grad`, over what the traced code and its arguments have recorded."""
    state = frame.state
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise TraceBreakError("GB0002", "torch.autograd.grad inside a transform")
    guard_no_anomaly(state)
    if state.effects() != TraceState().effects():
        _refuse_code(frame, [*args, *kwargs.values()])
    if state.derivatives.retained:
        raise TraceBreakError("GB0002", "torch.autograd.grad where tensors keep their gradients")
    if state.derivatives.hooks or any(_hooked(i.real) for i in state.tensor_inputs):
        raise TraceBreakError("GB0002", "torch.autograd.grad of tensors with hooks")
    _trace_formulas(frame, args, kwargs)
    node, result = state.emit("call_function", torch.autograd.grad, args, kwargs)
    return result_of(state, node, result)


def _trace_formulas(frame: Frame, args: tuple[Variable, ...], kwargs: dict[str, Variable]) -> None:
    """Where the gradients get a graph, learn what functions of the program put into it."""
    created = args[4] if len(args) > 4 else kwargs.get("create_graph", constant(False))
    if plain_value(created) is False:
        return
    outputs = args[0] if args else kwargs["outputs"]
    fakes = map_variables([outputs], lambda tensor: tensor.fake, lambda number: None)
    for call in reach_of(tensors_in(fakes)).calls:
        trace_backward(frame, call, create_graph=True)


def _refuse_code(frame: Frame, given: list[Variable]) -> None:
    """Break where Python may run in the pass, which would not see what the trace has changed."""
    state = frame.state
    fakes = map_variables(given, lambda tensor: tensor.fake, lambda number: None)
    reach = reach_of(tensors_in(fakes))
    if reach.runs_python or reach.calls:
        raise TraceBreakError("GB0002", "torch.autograd.grad after objects were changed")
    if state.scope.parent is not None:
        raise TraceBreakError("GB0002", "torch.autograd.grad of outer tensors in a transform")
    guard_leaves(state, [leaf_of(state, fake) for fake in reach.leaves])


def _hooked(tensor: torch.Tensor) -> bool:
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))
