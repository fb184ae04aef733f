"""What a trace gives: a graph, its guards, and what Python does around it."""

from __future__ import annotations

import inspect
import types
from dataclasses import field
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.breaking.breaks import Continuation, Known, go_on
from plait_bytecode_tracer.breaking.origins import lines_at
from plait_bytecode_tracer.errors import GraphBreak, TraceBreakError
from plait_bytecode_tracer.frames.binding import parameter_names
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.guards import Guard, GuardTree, Reads, guard_tree
from plait_bytecode_tracer.outside.aliasing import (
    changes_shared_history,
    guard_distinct,
    guard_memory,
    guard_shared_storage,
    refuse_shared,
)
from plait_bytecode_tracer.outside.mourning import refuse_deaths
from plait_bytecode_tracer.outside.seeds import Preparation, preparation
from plait_bytecode_tracer.outside.tensors import GraphInput, guard_requires_grad
from plait_bytecode_tracer.residual.effects import replay_effects
from plait_bytecode_tracer.residual.rebuild import Rebuilder
from plait_bytecode_tracer.rules.tensor_hooks import refuse_late_changes
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.ambient import enter_inference_mode
from plait_bytecode_tracer.tensors.dead_nodes import drop_dead_nodes
from plait_bytecode_tracer.tensors.histories import guard_histories, note_requirements
from plait_bytecode_tracer.values.keys import all_distinct, key_object
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import Variable
from plait_utils import dataclass


class WholeCallEagerError(Exception):
    """The call must run as eager Python as a whole; says why."""

    def __init__(self, graph_break: GraphBreak, state: TraceState | None = None) -> None:
        super().__init__(graph_break.reason)
        self.graph_break = graph_break
        self.state = state
        """The trace as far as it came: while its guards hold, calls end here again."""


@dataclass(slots=True)
class Capture:
    """A traced call: a torch-level graph, and what Python does around it."""

    graph_module: fx.GraphModule
    inputs: tuple[GraphInput, ...]
    tree: GuardTree
    graph_break: GraphBreak | None
    continuation: Continuation | None
    state: TraceState = field(repr=False)
    body: tuple[str, ...] = field(repr=False, default=())
    """Python after the graph has run, up to the return."""
    reads: Reads = field(repr=False, default_factory=Reads)
    """What `body` reads from the call, by name."""
    is_plain_forward: bool = False
    """Whether it is a module's `forward`, with guards that a call of the module is no more."""
    preparation: Preparation | None = None
    """What sets random generators before the graph."""

    @property
    def given(self) -> tuple[Source, ...]:
        """What the graph's call is given: its inputs, and what is set before it."""
        prepare = self.preparation
        return self.sources if prepare is None else (*self.sources, *prepare.sources)

    @property
    def guards(self) -> tuple[Guard, ...]:
        """All that was assumed, in the order of checking."""
        return self.tree.guards

    @property
    def sources(self) -> tuple[Source, ...]:
        """How each placeholder is read from the call."""
        return tuple(graph_input.source for graph_input in self.inputs)

    @property
    def required(self) -> tuple[tuple[int, bool], ...]:
        """The places of inputs of which the call sets whether they need gradients, and to what."""
        nodes = [each.node for each in self.inputs]
        return tuple(
            (nodes.index(n), wanted) for n, (_, wanted) in self.state.derivatives.required.items()
        )

    def guard_rest(self) -> None:
        """Guard what a backend has assumed of symbolic sizes while it compiled."""
        symbols = self.state.symbols
        if symbols is not None and symbols.has_more():
            symbols.guard_rest()
            outputs = [*self.given, *self.reads.sources.values()]
            self.tree = guard_tree(self.state.guards, outputs)

    @property
    def example_inputs(self) -> tuple[Any, ...]:
        """The fake tensor of each placeholder; a SymInt or float of one that is a number."""
        return tuple(i.node.meta["val"] for i in self.inputs)


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
    real = {id(key_object(value)): code for code, value in state.world.distinct.items()}
    if len(real) > 1:
        check = state.constants.name(all_distinct)
        state.guard(None, f"{check}({', '.join(real.values())})", "keys are different objects")


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
