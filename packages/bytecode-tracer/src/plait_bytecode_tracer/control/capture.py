"""Functions that become bodies: each is traced into a graph of its own.

Tensors and sizes that a function uses from around it become inputs of the graph, behind those that
it is given; all bodies of an operator take the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.control.bodies import Body, is_differentiable
from plait_bytecode_tracer.control.operators import Draws, operation_of
from plait_bytecode_tracer.control.surroundings import Autocast
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError
from plait_bytecode_tracer.failing import CHANGES, changes_unseen
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.containers import describe, hold
from plait_bytecode_tracer.rewinding import draws, is_of_the_cpu
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.scopes import Scope
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    CellVariable,
    DictVariable,
    FunctionVariable,
    Known,
    ObjectVariable,
    PartialVariable,
    SequenceVariable,
    TensorVariable,
    Variable,
)
from plait_utils import dataclass


class RefusedError(TraceBreakError):
    """A function does what torch's operator refuses: the call is torch's own, and says so."""

    def __init__(self, reason: str) -> None:
        super().__init__("GB0002", reason)


@dataclass(slots=True)
class Traced:
    """A function that was traced into a graph."""

    scope: Scope
    given: list[fx.Node]
    result: Variable
    leaves: list[TensorVariable]
    """The tensors that it returns."""

    def shape(self) -> object:
        """How its results are nested, as something to compare."""
        return _shape(self.result)

    def rebuilt(self, tensors: Sequence[TensorVariable]) -> Variable:
        """The result with other tensors."""
        return _rebuilt(self.result, iter(tensors))


@dataclass(frozen=True, slots=True)
class Captured:
    """The bodies of an operator, and what it is given for what they use from around them."""

    bodies: list[Body]
    free: list[fx.Node]
    autocast: Autocast
    draws: Draws
    results: list[Traced]

    def kinds(self) -> list[str]:
        """What an operator's schema says of what the bodies use from around them."""
        return [kind_of(node.meta["val"]) for node in self.free]


_KINDS = (
    (torch.Tensor, "Tensor"),
    (int | torch.SymInt, "SymInt"),
    (float | torch.SymFloat, "float"),
)


def kind_of(value: Any) -> str:
    """A type of a schema. Raises TraceBreakError for what none has."""
    for cls, kind in _KINDS:
        if isinstance(value, cls) and not isinstance(value, bool):
            return kind
    raise TraceBreakError("GB0009", f"a {type(value).__name__} that a branch or a loop uses")


def items_of(variable: Variable) -> list[Variable]:
    """The elements of a list or tuple."""
    if isinstance(variable, Known) and variable.value == ():
        return []
    return hold(variable, SequenceVariable).items


def only_tensors_in(variables: Sequence[Variable]) -> list[TensorVariable]:
    """The same as :func:`tensors_in`, where there is nothing else."""
    found = [tensor for each in variables for tensor in tensors_in(each)]
    leaves = [leaf for each in variables for leaf in _leaves(each)]
    if len(leaves) != len(found):
        raise TraceBreakError("GB0002", "a loop that carries numbers")
    return found


def tensors_in(variable: Variable) -> list[TensorVariable]:
    """The tensors in nested lists, tuples and dicts, beside constants. Raises TraceBreakError for
    other things."""
    match variable:
        case TensorVariable() if variable.cls in (torch.Tensor, torch.nn.Parameter):
            return [variable]
        case SequenceVariable() if variable.kind in (list, tuple):
            return [tensor for item in variable.items for tensor in tensors_in(item)]
        case DictVariable() if variable.kind is dict:
            return [tensor for item in variable.items.values() for tensor in tensors_in(item)]
        case Known(value) if is_constant(value) and value is not None:
            return []
    raise TraceBreakError("GB0009", f"a {describe(variable)} that a branch or a loop is given")


def _leaves(variable: Variable) -> list[Variable]:
    match variable:
        case SequenceVariable():
            return [leaf for item in variable.items for leaf in _leaves(item)]
        case DictVariable():
            return [leaf for item in variable.items.values() for leaf in _leaves(item)]
        case Known(()):
            return []
    return [variable]


def _shape(variable: Variable) -> object:
    match variable:
        case SequenceVariable():
            return variable.kind, tuple(map(_shape, variable.items))
        case DictVariable():
            return dict, tuple((key, _shape(item)) for key, item in variable.items.items())
        case Known(value):
            return type(value), repr(value)
    return None


def _rebuilt(variable: Variable, tensors: Iterator[TensorVariable]) -> Variable:
    match variable:
        case TensorVariable():
            return next(tensors)
        case SequenceVariable():
            return SequenceVariable([_rebuilt(i, tensors) for i in variable.items], variable.kind)
        case DictVariable():
            return DictVariable({k: _rebuilt(i, tensors) for k, i in variable.items.items()})
    return variable


def capture(
    frame: Frame,
    functions: Sequence[Variable],
    arguments: Sequence[Variable],
    fakes: Sequence[torch.Tensor],
) -> Captured:
    """Trace functions as the bodies of one operator.

    Args:
        frame: the one that calls the operator.
        functions: each is called with the arguments.
        arguments: tensors in containers; in their places come inputs of the graph.
        fakes: what these tensors are in the body.

    Raises TraceBreakError where that cannot be; RefusedError where torch's operator raises.
    """
    state = frame.state
    traced = [_traced(frame, function, arguments, fakes) for function in functions]
    free = [*dict.fromkeys(node for each in traced for node in each.scope.free)]
    bodies = [_body(state, each, fakes, free) for each in traced]
    with state.ambient.applied():
        autocast = Autocast.now()
    nodes = [node for body in bodies for node in body.module.graph.nodes]
    drawing = [node for node in nodes if _draws(node)]
    if not all(map(is_of_the_cpu, drawing)) and needs_gradients(state, [*fakes], free):
        raise TraceBreakError("GB0002", "gradients of a branch or a loop that draws on a device")
    draws_how = Draws.FRESH if drawing else Draws.NONE
    return Captured(bodies, free, autocast, draws_how, traced)


def _draws(node: fx.Node) -> bool:
    operation = operation_of(node.target)
    return draws(node) if operation is None else operation.draws is not Draws.NONE


def _traced(
    frame: Frame,
    function: Variable,
    arguments: Sequence[Variable],
    fakes: Sequence[torch.Tensor],
) -> Traced:
    state = frame.state
    outer, gradients, mutates = state.scope, state.grad_enabled, state.mutates_tensors
    versions = {id(n.meta["val"]): _version(n) for n in _tensor_nodes(outer)}
    effects, held, checks = state.effects(), _held(function), len(state.checks)
    scope = state.scope = Scope(parent=outer)
    given: list[fx.Node] = []

    def inputs() -> Iterator[TensorVariable]:
        for fake in fakes:
            with state.fake_mode, torch.no_grad():
                value = torch.empty_like(fake)
                value.requires_grad_(fake.requires_grad and gradients)
            node = scope.graph.placeholder(f"arg{len(given)}")
            node.meta["val"] = value
            given.append(node)
            yield TensorVariable(node, value)

    try:
        tensors = inputs()
        result = frame.call(function, [_rebuilt(each, tensors) for each in arguments], {})
        if any(isinstance(each, Known) and each.value is None for each in _leaves(result)):
            raise RefusedError("a branch or a loop that returns None")
        leaves = tensors_in(result)
        for leaf in leaves:
            scope.local(leaf.node)
    except PythonError as error:
        raise RefusedError(f"a branch or a loop that raises {error}") from error
    finally:
        state.scope, state.mutates_tensors = outer, mutates
    if state.effects() != effects or _held(function) != held:
        raise RefusedError("a branch or a loop that changes objects from around it")
    if state.grad_enabled is not gradients or len(state.checks) != checks:
        raise TraceBreakError("GB0002", "a branch or a loop that leaves more than its results")
    _refuse_changes(state, scope, given, versions)
    _refuse_shared(scope, given, leaves)
    return Traced(scope, given, result, leaves)


def _tensor_nodes(scope: Scope | None) -> Iterator[fx.Node]:
    while scope is not None:
        yield from (n for n in scope.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor))
        scope = scope.parent


def _version(node: fx.Node) -> int:
    value = node.meta["val"]
    return -1 if value.is_inference() else int(value._version)


def _refuse_changes(
    state: TraceState, scope: Scope, given: Sequence[fx.Node], versions: dict[int, int]
) -> None:
    """Refuse a body that writes to what it is given, or uses from around it. `versions` are those
    from before of the tensors that were there; an input that came since has that of its node."""
    since = {id(each.node.meta["val"]): state.versions[each.node] for each in state.tensor_inputs}
    for node in scope.free:
        if isinstance(node.meta["val"], torch.Tensor):
            key = id(node.meta["val"])
            if _version(node) != versions.get(key, since.get(key)):
                raise RefusedError("a branch or a loop that changes a tensor from around it")
    unseen = any(CHANGES in n.meta and changes_unseen(n) for n in scope.graph.nodes)
    if unseen or any(_version(node) > 0 for node in given):
        raise RefusedError("a branch or a loop that changes a tensor that it is given")


def _refuse_shared(
    scope: Scope, given: Sequence[fx.Node], leaves: Sequence[TensorVariable]
) -> None:
    """Refuse results that share memory with what the body is given, or with each other."""
    values = [node.meta["val"] for node in (*given, *scope.free)]
    taken = {_memory(value) for value in values if isinstance(value, torch.Tensor)}
    for leaf in leaves:
        if _memory(leaf.fake) in taken:
            raise RefusedError("a branch or a loop that returns a tensor that it is given, or a "
                               "view of one, or one tensor twice")  # fmt: skip
        taken.add(_memory(leaf.fake))


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _held(function: Variable) -> list[object]:
    """What containers and cells hold that the traced code has made and the function reaches."""
    found: list[object] = []
    seen: set[int] = set()
    waiting: list[Variable | None] = [function]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        parts: Sequence[Variable | None] = ()
        match each:
            case FunctionVariable():
                parts = [*each.closure, *each.defaults, *each.keyword_defaults.values()]
            case CellVariable():
                parts = [each.content] if each.original is None else []
            case BoundVariable():
                parts = [each.function, each.self]
            case PartialVariable():
                parts = [each.function, each.args, each.kwargs]
            case SequenceVariable():
                parts = each.items
            case DictVariable():
                parts = [*each.items.values()]
            case ObjectVariable():
                parts = [*each.attributes.values()]
        found.append(tuple(map(id, parts)))
        waiting.extend(parts)
    return found


def _body(
    state: TraceState, traced: Traced, fakes: Sequence[torch.Tensor], free: Sequence[fx.Node]
) -> Body:
    """The graph of a function, with its inputs first: those that it is given, then `free`."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    inputs = [*traced.given, *(traced.scope.free.get(node) for node in free)]
    values = [*fakes, *(node.meta["val"] for node in free)]
    for place, (node, value) in enumerate(zip(inputs, values, strict=True)):
        made = graph.placeholder(f"arg{place}")
        made.meta["val"] = _plain(state, value)
        if node is not None:
            copies[node] = made
    for node in traced.scope.graph.nodes:
        if node.op != "placeholder":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[traced.scope.local(leaf.node)] for leaf in traced.leaves))
    results = [_seen(state, leaf.fake) for leaf in traced.leaves]
    return Body(fx.GraphModule(traced.scope.holder, graph, "Body"), results)


def _plain(state: TraceState, value: Any) -> Any:
    """What an input is in the body: a tensor lies in memory without gaps."""
    if not isinstance(value, torch.Tensor):
        return value
    with state.fake_mode, torch.no_grad():
        return torch.empty_like(value).detach()


def _seen(state: TraceState, value: torch.Tensor) -> torch.Tensor:
    with state.fake_mode, torch.no_grad():
        return value.detach()


def needs_gradients(
    state: TraceState, fakes: Sequence[torch.Tensor], free: Sequence[fx.Node]
) -> bool:
    """Whether gradients may be asked of what an operator computes."""
    values = [*fakes, *(node.meta["val"] for node in free)]
    return state.grad_enabled and any(
        each.requires_grad for each in values if is_differentiable(each)
    )
