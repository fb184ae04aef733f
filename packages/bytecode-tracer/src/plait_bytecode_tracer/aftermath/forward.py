"""A call whose graph has failed, taken on from there: what came before has happened.

A graph that runs as it was captured has changed tensors, drawn random numbers and called operators
as the program had, up to the node that failed. What else the program has done by then is known
where it is traced once more, up to the instruction of that node: it is done now, and the
instruction raises the error, in the frames of the program that handle it.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import fx

from plait_bytecode_tracer.aftermath.progress import (
    Progress,
    changes_inputs,
    memory_of,
)
from plait_bytecode_tracer.breaking.throwing import Thrown, throw
from plait_bytecode_tracer.capture import Capture
from plait_bytecode_tracer.capturing import captured
from plait_bytecode_tracer.entries import MISS, Parts, make_entry
from plait_bytecode_tracer.errors import GraphBreak, TraceBreakError
from plait_bytecode_tracer.failing import is_pure
from plait_bytecode_tracer.frames.binding import parameter_names
from plait_bytecode_tracer.graph.changes import STEP
from plait_bytecode_tracer.guards import Reads, guard_tree
from plait_bytecode_tracer.outside.aliasing import guard_memory, refuse_shared
from plait_bytecode_tracer.outside.generators import plan_of
from plait_bytecode_tracer.outside.mourning import refuse_deaths
from plait_bytecode_tracer.residual.rebuild import Rebuilder
from plait_bytecode_tracer.residual.steps import run_steps
from plait_bytecode_tracer.rewinding import Run
from plait_bytecode_tracer.tensors.ambient import enter_inference_mode
from plait_bytecode_tracer.tracing import trace_to


class CannotGoOnError(Exception):
    """A call cannot be taken on from where its graph failed; nothing has been done."""


def roll_forward(
    function: types.FunctionType,
    capture: Capture,
    progress: Progress,
    error: BaseException,
    values: Sequence[Any],
    drawn: Run | None,
) -> Any:
    """What a call gives or raises whose graph raised `error`.

    Args:
        function: what was called.
        capture: the call as it was traced.
        progress: how far its graph came.
        error: what it raised.
        values: the call's arguments, one for each parameter.
        drawn: what generators have drawn before the graph.

    Raises CannotGoOnError before anything has been done.
    """
    try:
        with _without_saved_tensor_hooks():
            go_on = _replay(function, capture, progress, error, values, drawn)
    finally:  # an error that leads to itself would outlive its handlers
        del error, progress, drawn
    return go_on()


def _replay(
    function: types.FunctionType,
    capture: Capture,
    progress: Progress,
    error: BaseException,
    values: Sequence[Any],
    drawn: Run | None,
) -> Callable[[], Any]:
    """Do what the call has done before its graph failed; what goes on from there."""
    if drawn is not None and drawn.is_lost:
        raise CannotGoOnError("another thread has drawn random numbers since")
    try:
        again, thrown = _capture_to(function, capture, progress, error, values)
        graph_values = _Values(again, progress, error, drawn)
        targets = again.continuation.targets if again.continuation is not None else ()
        made = tuple(target.make() for target in targets)
        count = len(parameter_names(function.__code__))
        traceback = thrown.traceback(progress.tail)
        run = make_entry(
            Parts(function.__name__, again, graph_values, made, count), (), native=False
        )
    except Exception as failure:
        raise CannotGoOnError(str(failure)) from failure
    try:
        result = run.run(*values)
    except CannotGoOnError:
        raise
    except Exception as failure:
        if not graph_values.is_read:
            raise CannotGoOnError(str(failure)) from failure
        raise
    if result is MISS:
        raise CannotGoOnError("a guard that held before the graph ran fails")
    again.state.release()
    graph_values.release()
    error.__traceback__ = traceback
    if thrown.continuation is not None:
        return partial(run_steps, result)
    return partial(_raise, [error])


def _raise(held: list[BaseException]) -> NoReturn:
    raise held.pop()


@contextlib.contextmanager
def _without_saved_tensor_hooks() -> Iterator[None]:
    """Without what a checkpoint has left: one whose function raises leaves its hooks on, up to
    torch 2.11, while the error lives. There were none when the call began."""
    hooks: list[Any] = []
    autograd: Any = torch._C._autograd
    while (top := autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(hooks):
            autograd._push_saved_tensors_default_hooks(*pair)


def _capture_to(
    function: types.FunctionType,
    capture: Capture,
    progress: Progress,
    error: BaseException,
    values: Sequence[Any],
) -> tuple[Capture, Thrown]:
    if capture.state.seeds.count:  # what was read of generators that the graph has moved
        raise TraceBreakError("GB0002", "the state of a random generator is read")
    step = progress.node.meta.get(STEP)
    if step is None:
        raise TraceBreakError("GB0001", "a node that no instruction has added")
    line = progress.node.meta["source_line"]
    frames = trace_to(function, values, capture.state, step, line)
    state = frames[-1].state
    _require_same(state.graph, progress, step)
    if state.locks.is_held:
        raise TraceBreakError("GB0001", "an error while a lock is held")
    rebuilder = Rebuilder(state, Reads())
    thrown = throw(frames[::-1], rebuilder)
    refuse_deaths(state, rebuilder)
    guard_memory(state)
    refuse_shared(rebuilder.named)
    lines = tuple(rebuilder.lines) if thrown.continuation else (*rebuilder.lines, "return None")
    failure = GraphBreak("GB0008", str(error), frames[-1].lines(), "")
    again = captured(function, state, rebuilder, lines, failure, thrown.continuation)
    again.tree = guard_tree((), [*again.sources, *again.reads.sources.values()])  # all has held
    again.preparation = None  # generators have been set before the graph
    return again, thrown


def _require_same(graph: fx.Graph, progress: Progress, step: int) -> None:
    """Raise where the graph of a second trace is another one than the beginning of the first."""
    known = {node.name: node for node in progress.node.graph.nodes}
    for node in graph.nodes:
        other = known.get(node.name)
        if other is not None and _shape(node) != _shape(other):
            raise TraceBreakError("GB0001", "a second trace that differs")
    names = {node.name for node in graph.nodes}
    for node in progress.before():
        is_computed = node.op not in ("placeholder", "get_attr")
        if is_computed and node.name not in names and node.meta.get(STEP) != step:
            raise TraceBreakError("GB0001", "a second trace without what the first one has")


def _shape(node: fx.Node) -> tuple[object, ...]:
    target = node.target if isinstance(node.target, str) else id(node.target)
    return node.op, target, str(node.args), str(node.kwargs)


class _Values:
    """What stands for the graph of a second trace: it gives what the first has computed, and the
    error.

    Raises CannotGoOnError where a value is gone, and cannot be computed again.
    """

    def __init__(
        self, again: Capture, progress: Progress, error: BaseException, drawn: Run | None
    ) -> None:
        self._error = error
        self._graph = again.graph_module.graph
        self._progress = progress
        self._drawn = drawn
        self._inputs = again.inputs
        self._given: set[str] = set()
        self._plans = {
            id(record.owner.value): record.drawn.plan for record in again.state.generators.values()
        }
        self._numbers = [*again.state.world.generators.values()]
        self.is_read = False
        """Whether the values have been given: what follows is the program's."""

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        placeholders = self._graph.find_nodes(op="placeholder")
        known = {node.name: value for node, value in zip(placeholders, inputs, strict=True)}
        self._take_drawn(known)
        for name, value in known.items():
            held = self._progress.values.get(name)
            is_other = held is not None and held is not value and isinstance(value, torch.Tensor)
            if is_other and name not in self._given:
                raise CannotGoOnError("the graph did not run on what it was called with")
        computing = _Computing(self._progress, known)
        (outputs,) = next(iter(self._graph.find_nodes(op="output"))).args
        found = tuple(computing.value(node.name) for node in outputs)
        self._move()
        self.is_read = True
        return (*found, self._error)

    def _take_drawn(self, known: dict[str, Any]) -> None:
        """Give what stands for the draws of generators the numbers with which the graph ran."""
        if self._drawn is None or self._drawn.inputs is None:
            return
        names = [node.name for node in self._progress.node.graph.find_nodes(op="placeholder")]
        given = dict(zip(names, self._drawn.inputs, strict=True))
        for each in self._inputs:
            name = each.node.name
            if plan_of(each.source) is not None and isinstance(known[name], torch.Tensor):
                known[name].data = given[name]
                self._given.add(name)

    def _move(self) -> None:
        """Leave the generators where the program had come."""
        for each in self._drawn.moved if self._drawn is not None else ():
            plan = self._plans.get(id(each.generator))
            if each.take_back() and plan is not None:
                plan.move(each.generator)
        for known in self._numbers:
            known.plan.run(known.real)

    def release(self) -> None:
        """Let go of the error and the values: the code that takes them leads to itself."""
        del self._error, self._progress, self._drawn


class _Computing:
    """Values of nodes that have run: those that the code held, and from them what it let go of."""

    def __init__(self, progress: Progress, inputs: Mapping[str, Any]) -> None:
        self._progress = progress
        self._nodes = {node.name: node for node in progress.before()}
        self._known = {k: v for k, v in progress.values.items() if v is not None} | dict(inputs)

    def value(self, name: str) -> Any:
        """The value of a node. Raises CannotGoOnError where it cannot be had any more."""
        if name in self._known:
            return self._known[name]
        node = self._nodes.get(name)
        if node is None:
            raise CannotGoOnError(f"{name} was not computed")
        if node.op == "get_attr":
            found = functools.reduce(getattr, str(node.target).split("."), node.graph.owning_module)
        else:
            self._require_repeatable(node)
            found = self._run(node)
        self._known[name] = found
        return found

    def _run(self, node: fx.Node) -> Any:
        args = fx.node.map_arg(node.args, lambda given: self.value(given.name))
        kwargs = fx.node.map_arg(node.kwargs, lambda given: self.value(given.name))
        target: Any = node.target
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def _require_repeatable(self, node: fx.Node) -> None:
        switches = (torch._C._set_grad_enabled, enter_inference_mode)
        before = [*self._progress.before()]
        if not is_pure(node) or any(each.target in switches for each in before):
            raise CannotGoOnError(f"{node.name} cannot be computed again")
        given = memory_of(node.all_input_nodes)
        if any(changes_inputs(each, given) for each in before):
            raise CannotGoOnError(f"what {node.name} was computed from has changed")
