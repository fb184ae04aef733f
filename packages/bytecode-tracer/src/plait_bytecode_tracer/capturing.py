"""How traces end: with the graph they have made, or as a call that Python makes."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from plait_bytecode_tracer.breaking.moments import Known
from plait_bytecode_tracer.breaking.origins import lines_at
from plait_bytecode_tracer.capture import Capture, WholeCallEagerError
from plait_bytecode_tracer.errors import GraphBreak, TraceBreakError
from plait_bytecode_tracer.frames.binding import parameter_names
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.guards import Distinct, Kind, Reads, guard_tree
from plait_bytecode_tracer.outside.aliasing import (
    changes_shared_history,
    guard_distinct,
    guard_memory,
    guard_shared_storage,
    refuse_shared,
)
from plait_bytecode_tracer.outside.mourning import refuse_deaths
from plait_bytecode_tracer.outside.seeds import preparation
from plait_bytecode_tracer.outside.tensors import guard_requires_grad
from plait_bytecode_tracer.residual.effects import replay_effects
from plait_bytecode_tracer.residual.rebuild import Rebuilder
from plait_bytecode_tracer.rules.tensor_hooks import refuse_late_changes
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.ambient import enter_inference_mode
from plait_bytecode_tracer.tensors.dead_nodes import drop_dead_nodes
from plait_bytecode_tracer.tensors.histories import guard_histories, note_requirements
from plait_bytecode_tracer.values.keys import key_object
from plait_bytecode_tracer.values.variables import Variable

if TYPE_CHECKING:
    from plait_bytecode_tracer.breaking.breaks import Continuation


def whole_call(
    function: types.FunctionType, code: str, reason: str, state: TraceState | None = None
) -> WholeCallEagerError:
    """Why a call is to run as plain Python, as an exception."""
    error = TraceBreakError(code, reason)
    lines = lines_at(function)
    return WholeCallEagerError(GraphBreak(code, reason, lines, error.kind.hint), state)


def finished_capture(
    function: types.FunctionType, frame: Frame, state: TraceState, result: Variable
) -> Capture:
    """A trace that has come to its end. Raises WholeCallEagerError."""
    rebuilder = Rebuilder(state, Reads())
    state.frames.leaving.append(result)
    try:
        returned = rebuilder.value(result)
        replay_effects(rebuilder)
        state.frames.running.append(frame)  # what its variables hold lives to the end of the call
        refuse_late_changes(state, rebuilder.names)
        refuse_deaths(state, rebuilder)
        guard_memory(state)
        refuse_shared(rebuilder.named)
    except TraceBreakError as error:
        rebuilder.release()
        found = GraphBreak(error.kind.code, error.reason, frame.lines(), error.kind.hint)
        raise WholeCallEagerError(found, state) from error
    lines = (*rebuilder.lines, f"return {returned}")
    return captured(function, state, rebuilder, lines, None, None)


def capture_at_break(
    function: types.FunctionType,
    frame: Frame,
    state: TraceState,
    reason: GraphBreak,
    known: Known,
) -> Capture:
    """A trace that ends at a graph break. Raises where the call cannot go on there."""
    from plait_bytecode_tracer.breaking.breaks import go_on  # which most traces do without

    rebuilder = Rebuilder(state, Reads())
    try:
        continuation = go_on(frame, rebuilder, known)
        refuse_deaths(state, rebuilder)
        guard_memory(state)
        refuse_shared(rebuilder.named)
    except Exception:
        rebuilder.release()
        raise
    return captured(function, state, rebuilder, tuple(rebuilder.lines), reason, continuation)


def captured(
    function: types.FunctionType,
    state: TraceState,
    rebuilder: Rebuilder,
    lines: tuple[str, ...],
    graph_break: GraphBreak | None,
    continuation: Continuation | None,
) -> Capture:
    """What a trace has come to, with the Python that follows the graph."""
    graph = state.graph
    state.ambient.close(graph)
    graph.output((*rebuilder.outputs, *state.checks))
    if state.symbols is not None:
        state.symbols.guard_rest()
    if not state.grad_enabled_before and _switches_gradients(graph):
        guard_requires_grad(state)
    _guard_keys(state)
    guard_distinct(state)
    if state.mutates_tensors:
        guard_histories(state)
        note_requirements(state)
    if (state.mutates_tensors or state.derivatives.required) and changes_shared_history(state):
        text = "an input that shares memory is changed where gradients are recorded"
        raise whole_call(function, "GB0009", text, state)
    if state.mutates_tensors or state.derivatives.required:
        guard_shared_storage(state)
    if not state.mutates_tensors:
        drop_dead_nodes(graph)
    module = fx.GraphModule(state.scope.holder, graph, function.__name__)
    if state.bucket_bytes is not None:
        for each in state.inputs:
            each.node.meta["bucket_bytes"] = state.bucket_bytes
    reads, prepare = rebuilder.writer, preparation(state)
    rebuilder.release()
    given = [*(i.source for i in state.inputs), *(() if prepare is None else prepare.sources)]
    return Capture(
        module,
        tuple(state.inputs),
        guard_tree(state.guards, [*given, *reads.sources.values()]),
        graph_break,
        continuation,
        state,
        lines,
        reads,
        state.is_plain_forward,
        prepare,
    )


def _switches_gradients(graph: fx.Graph) -> bool:
    switches: tuple[Any, ...] = (torch._C._set_grad_enabled, enter_inference_mode)
    return any(node.target in switches for node in graph.nodes)


def _guard_keys(state: TraceState) -> None:
    """Objects from outside that are keys of the trace's dicts are different in each call."""
    real = {id(key_object(value)): source for source, value in state.world.distinct.values()}
    if len(real) > 1:
        expected = Distinct(tuple(real.values()))
        state.require(None, Kind.DISTINCT, expected, "keys are different objects")


def eager_capture(
    function: types.FunctionType, state: TraceState, graph_break: GraphBreak
) -> Capture:
    """A call that runs as plain Python while the guards hold that led to that."""
    code = function.__code__
    names = parameter_names(code)
    given = [f"_a{n}" for n in range(len(names))]
    keyword_count = code.co_argcount + code.co_kwonlyargcount
    arguments, rest = given[: code.co_argcount], given[keyword_count:]
    if code.co_flags & inspect.CO_VARARGS:
        arguments.append(f"*{rest.pop(0)}")
    arguments += [f"{names[n]}={given[n]}" for n in range(code.co_argcount, keyword_count)]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        arguments.append(f"**{rest.pop(0)}")
    name, listed = state.constants.name(function), ", ".join(arguments)
    call = f"return {name}({listed})"
    if len(given) == code.co_argcount:
        call = f"return _step({name}, [{listed}])"
    graph = fx.Graph()
    graph.output(())
    module = fx.GraphModule(torch.nn.Module(), graph, function.__name__)
    if state.symbols is not None:
        state.symbols.guard_rest()
    tree = guard_tree(state.guards, ())
    return Capture(module, (), tree, graph_break, None, state, (call,))
