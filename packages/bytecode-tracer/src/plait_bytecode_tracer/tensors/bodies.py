"""Calls of functions by torch's transforms: the function is traced into a graph of its own.

The transform itself runs on fake tensors, and calls back: what its function is given, a
batched or a differentiable tensor, is what the trace of the function computes with.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from plait_bytecode_tracer.aftermath.progress import writes_to_inputs
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError
from plait_bytecode_tracer.failing import mark_body, require_undone
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.containers import describe
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors import transforms
from plait_bytecode_tracer.tensors.patches import refuse_modes
from plait_bytecode_tracer.tensors.scopes import Scope
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    OpaqueVariable,
    SequenceVariable,
    TensorVariable,
    Variable,
)
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class _Passed:
    """An argument without tensors, which a transform passes on to its function."""

    variable: Variable


@dataclass(slots=True)
class Body:
    """The function that a transform calls, traced when it does."""

    frame: Frame
    function: Variable
    repeats: bool = False
    """Whether it is called again with the same, as a checkpoint does for gradients."""
    module: fx.GraphModule | None = None
    free: tuple[fx.Node, ...] = ()
    """What it uses from the graph around it."""
    takes_structure: ClassVar[bool] = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the function with what the transform gives it. Returns fake tensors."""
        if self.module is not None and self.repeats:
            free = [node.meta["val"] for node in self.free]
            return self.module(*transforms.tensors_in(args), *transforms.tensors_in(kwargs), *free)
        if self.module is not None:
            raise TraceBreakError("GB0002", "a function that a transform calls several times")
        state = self.frame.state
        outer, gradients = state.scope, state.grad_enabled
        scope = state.scope = Scope(parent=outer)
        state.grad_enabled = torch.is_grad_enabled()
        try:
            with unset_fake_temporarily():
                given = [_variable(scope, value) for value in args]
                named = {name: _variable(scope, value) for name, value in kwargs.items()}
                result = self._call(given, named)
                nodes = values_of(result, lambda tensor: scope.local(tensor.node))
                found = values_of(result, lambda tensor: tensor.fake)
            if state.grad_enabled is not torch.is_grad_enabled():
                raise TraceBreakError("GB0002", "a function that leaves gradients switched")
        finally:
            state.scope, state.grad_enabled = outer, gradients
        scope.graph.output(nodes)
        if self.repeats and gradients and writes_to_inputs(scope.graph):
            raise TraceBreakError("GB0002", "a checkpoint of a function that writes to tensors")
        self.module = fx.GraphModule(scope.holder, scope.graph, "Body")
        self.free = tuple(scope.free)
        return found

    def _call(self, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        self.frame.state.is_direct = False
        try:
            return self.frame.call(self.function, args, kwargs)
        except PythonError as error:
            raise TraceBreakError("GB0006", f"{error} is raised in a transform") from error


def _variable(scope: Scope, value: Any) -> Variable:
    """What a transform passes to its function; its tensors are the body's inputs, in order."""
    match value:
        case torch.Tensor():
            node = scope.graph.placeholder(f"arg{len(scope.graph.nodes)}")
            return TensorVariable(node, value)
        case _Passed(variable):
            return variable
        case list() | tuple():
            return SequenceVariable([_variable(scope, item) for item in value], type(value))
        case dict():
            items = {key: _variable(scope, item) for key, item in value.items()}
            return DictVariable(items, type(value))
    return Known(value)


def values_of(variable: Variable, tensor: Callable[[TensorVariable], Any]) -> Any:
    """What a body returns: tensors through `tensor`, in lists, tuples and dicts; constants."""
    match variable:
        case TensorVariable() if variable.cls in (torch.Tensor, torch.nn.Parameter):
            return tensor(variable)
        case SequenceVariable() if variable.kind in (list, tuple):
            return variable.kind([values_of(item, tensor) for item in variable.items])
        case DictVariable() if variable.kind is dict:
            return {key: values_of(item, tensor) for key, item in variable.items.items()}
        case Known(value) if is_constant(value):
            return value
    raise TraceBreakError("GB0009", f"a {describe(variable)} that a transform's function returns")


def passed(variable: Variable) -> Any:
    """An argument of a transform: containers and tensors as they are, else in a wrapper."""
    match variable:
        case TensorVariable():
            return variable.fake
        case SequenceVariable() if variable.kind in (list, tuple):
            return variable.kind([passed(item) for item in variable.items])
        case DictVariable() if variable.kind is dict:
            return {key: passed(item) for key, item in variable.items.items()}
        case Known(value) if is_constant(value):
            return value
    return _Passed(variable)


def _nodes(state: TraceState, variable: Variable) -> Any:
    """An argument of a transform in the graph; what is no tensor, the body has in itself."""
    match variable:
        case TensorVariable():
            return state.scope.local(variable.node)
        case SequenceVariable() if variable.kind in (list, tuple):
            return variable.kind([_nodes(state, item) for item in variable.items])
        case DictVariable() if variable.kind is dict:
            return {key: _nodes(state, item) for key, item in variable.items.items()}
        case Known(value) if is_constant(value):
            return value
    return None


def emit_transform(
    frame: Frame,
    target: Callable[..., Any],
    function: Variable,
    args: Sequence[Variable],
    kwargs: Mapping[str, Variable],
    options: Sequence[Any],
) -> Variable:
    """A call of `target`, of `plait_bytecode_tracer.tensors.transforms`, with a traced body."""
    state = frame.state
    refuse_modes(state, "a transform")
    state.seeds.settle(state)
    if state.derivatives.repointed:
        raise TraceBreakError("GB0002", "a transform after the data of parameters was set")
    body = Body(frame, function, target is transforms.checkpoint)
    given = [passed(arg) for arg in args]
    named = {name: passed(arg) for name, arg in kwargs.items()}
    plain = [values_of(o, lambda t: t.fake) if isinstance(o, Variable) else o for o in options]
    result = state.run("call_function", target, (body, (), given, named, *plain), {})
    if body.module is None:
        raise TraceBreakError("GB0002", f"{target.__name__} that does not call its function")
    made: Any = (
        state.scope.add(body.module),
        tuple(map(state.scope.local, body.free)),
        tuple(_nodes(state, arg) for arg in args),
        {name: _nodes(state, arg) for name, arg in kwargs.items()},
        *(values_of(o, lambda t: state.scope.local(t.node)) if isinstance(o, Variable) else o
          for o in options),
    )  # fmt: skip
    state.pace.note_operation()
    node = state.graph.call_function(target, made)
    node.meta["val"] = result
    state.mark(node)
    mark_body(node, body.module.graph)
    if state.must_be_undone:
        require_undone(node)
    return result_of(state, node, result)


def call_opaque(
    frame: Frame, function: OpaqueVariable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """A call of a function that a call of the graph has returned."""
    if not callable(function.fake):
        raise TraceBreakError("GB0009", f"a call of a {type(function.fake).__name__}")
    node, result = frame.state.emit("call_function", transforms.call, [function, args, kwargs], {})
    return result_of(frame.state, node, result)


def result_of(state: TraceState, node: fx.Node, value: Any) -> Variable:
    """What a call of the graph returned: tensors in containers, functions, constants."""
    match value:
        case torch.Tensor():
            return TensorVariable(node, value)
        case list() | tuple() if type(value) in (list, tuple):
            items = [_part(state, node, place, item) for place, item in enumerate(value)]
            return SequenceVariable(items, type(value))
        case dict():
            return DictVariable({k: _part(state, node, k, item) for k, item in value.items()})
    return Known(value) if is_constant(value) else OpaqueVariable(node, value)


def _part(state: TraceState, node: fx.Node, key: Any, value: Any) -> Variable:
    if is_constant(value):
        return Known(value)
    part = state.graph.call_function(operator.getitem, (node, key))
    part.meta["val"] = value
    state.mark(part)
    return result_of(state, part, value)
