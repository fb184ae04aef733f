"""What a call does when its graph fails as it runs.

Fake tensors do not tell every error: a matrix may be singular, an index out of range. Where the
graph fails, nothing of the call has happened but what the graph has done. If that cannot be
seen, or can be undone, the call is made as plain Python: it handles or raises the error where the
program does, after the effects that come before it. If it can be seen, as where tensors of the
caller's have changed, a graph that ran as it was captured is taken on from the node that failed
(see `forward`). Of other graphs it depends on who compiled them:

- What a backend returns may have an attribute `unchanged_on_error`, another call of the same that
  changes inputs only when nothing can fail any more.
- Small tensors that the graph changes, as statistics of normalization are, are copied before it
  runs, where it may fail, and get their values back.
- Where a check of data fails, all that the graph had done by then can be undone (see
  `graph.checks`).
- Else the error says that what the program had done before it may be missing.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.aftermath.interrupted import (
    Uninterrupted,
    beginning,
    is_interruption,
)
from plait_bytecode_tracer.aftermath.progress import (
    Progress,
    changed_by,
    changes_inputs,
    is_undoable,
    memory_of_inputs,
    progress_of,
)
from plait_bytecode_tracer.aftermath.redrawing import state_left
from plait_bytecode_tracer.aftermath.saving import Saving, Watched, changed_places
from plait_bytecode_tracer.capture import Capture
from plait_bytecode_tracer.exceptions.user_lines import with_user_lines
from plait_bytecode_tracer.failing import is_fallible, is_pure, is_rewound, is_undone
from plait_bytecode_tracer.frames.binding import call_with_values
from plait_bytecode_tracer.graph.shown import keeping
from plait_bytecode_tracer.outside.draws import DrawnMeanwhileError
from plait_bytecode_tracer.rewinding import Rewinding, Run
from plait_bytecode_tracer.surroundings import LITTLE_ROOM
from plait_bytecode_tracer.tensors.ambient import as_they_were, has_failed
from plait_utils import PlaitError, dataclass, get_logger
from plait_utils.checks import is_check_failure

_ERRORS_OF_OPERATORS = (RuntimeError, ValueError, TypeError, IndexError, MemoryError)
_LOST = (
    "Plait: the graph of {name} failed where what it had done cannot be undone ({reason}). What "
    "the call did before this error, beside changes of tensors, is missing, and its handlers did "
    "not run."
)


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What a call does where its graph raises: it is called with the error and the call's values.

    Args:
        function: what is called.
        capture: the call as it was traced.
        module: the graph, as it runs where it runs as it was captured.
        undo: takes back what a graph that raised this error has changed of the caller's tensors,
            and tells whether nothing shows of that any more; None where nothing can be told.
        drawing: the graph's call that knows what it has drawn, where that may have to be undone.
        uninterrupted: the graph's call during which no signal's handler runs, where that is so.
        is_in_order: whether the graph runs as it was captured, one node after the other.
    """

    function: types.FunctionType
    capture: Capture
    module: fx.GraphModule
    undo: Callable[[BaseException], bool] | None
    drawing: Rewinding | None
    uninterrupted: Uninterrupted | None
    is_in_order: bool = False

    @property
    def undoes_checks(self) -> bool:
        """Whether nothing shows of a run of the graph in which one of its checks fails.

        What comes before a check can be undone, but for changes of tensors. What comes after it
        has not happened where the graph runs in order; elsewhere it must be something that can be
        undone too.
        """
        state = self.capture.state
        if not state.has_checks:
            return True
        prepare = self.capture.preparation
        if prepare is not None and prepare.steps and not self._rewinds:
            return False
        nodes = self.capture.graph_module.graph.nodes
        return self._stops_at_checks or (self.undo is not None and all(map(is_undone, nodes)))

    @property
    def undoes_changes(self) -> bool:
        """Whether nothing shows of a run of the graph that fails where somebody sees the error:
        the call is then made anew, with its handlers and what it prints."""
        if not self.capture.state.watched_changes:
            return True
        allowed = is_undone if self._rewinds else is_pure
        return self.undo is not None and all(map(allowed, self.capture.graph_module.graph.nodes))

    @property
    def _rewinds(self) -> bool:
        """Whether what the graph has drawn from the default generator is undone."""
        return self.drawing is not None and self.drawing.rewinds

    @property
    def _stops_at_checks(self) -> bool:
        """Whether a check that fails ends the graph before anything is changed."""
        return self.is_in_order and not self.capture.state.checks_after_changes

    def __call__(self, error: BaseException, *values: Any) -> Any:
        progress = None
        drawn = None if self.drawing is None else self.drawing.failed(error)
        if drawn is not None:
            drawn.take_back_numbers()
        try:
            if isinstance(error, PlaitError):
                raise error
            if is_interruption(error):
                progress = self._where_interrupted(error, drawn)
            else:
                progress = progress_of(error, self.module)
            if self._may_begin_again(error, progress):
                if drawn is not None:
                    drawn.undo(self._left(drawn, progress, error))
                progress = None  # it has frames
                return self._again(error, values)
            if progress is None:
                raise self._noted(error, "its backend does not tell how far it came")
            has_failed(error)  # its handlers see it, so that nobody else has to restore modes
            try:  # which graphs that do not fail do without
                from plait_bytecode_tracer.aftermath.forward import CannotGoOnError, roll_forward
            except RecursionError:
                raise self._noted(error, LITTLE_ROOM) from None
            try:
                return roll_forward(self.function, self.capture, progress, error, values, drawn)
            except CannotGoOnError as failure:
                reason = str(failure)
            raise self._noted(error, reason)
        finally:  # an error that leads to itself would outlive its handlers
            del error, progress, drawn

    def _where_interrupted(self, error: BaseException, drawn: Run | None) -> Progress | None:
        """Where in the graph a signal's handler raises, or might as well have."""
        graph = self.capture.graph_module.graph
        ended = None if self.uninterrupted is None else self.uninterrupted.end(error)
        if ended is not None:
            return ended
        progress = progress_of(error, self.module)
        if progress is not None:
            is_hidden = is_undoable(progress, draws_again=True)
        else:
            is_hidden = self._is_undone(error, draws_again=True)
        if not is_hidden:
            return progress
        if drawn is not None:
            drawn.rewind(self._left(drawn, progress, error))
        return beginning(graph, error)

    def _left(
        self, drawn: Run, progress: Progress | None, error: BaseException
    ) -> Callable[[], torch.Tensor]:
        """What finds the state in which the graph's own draws left the default generator."""
        graph, before = self.capture.graph_module.graph, dict(self.capture.state.ambient.before)
        stops = not is_interruption(error)

        def left() -> torch.Tensor:
            with as_they_were(before):
                return state_left(drawn, graph, progress, error, stops=stops)

        return left

    def _may_begin_again(self, error: BaseException, progress: Progress | None) -> bool:
        """Whether nothing shows of what the graph has done, by now, and it may be done anew."""
        if isinstance(error, DrawnMeanwhileError):
            return True  # before the graph
        if is_interruption(error):
            return False
        if is_check_failure(error) and (
            self._stops_at_checks or (self.undo is not None and self.undo(error))
        ):
            return True
        if not isinstance(error, _ERRORS_OF_OPERATORS):
            return False
        if progress is None or self.capture.state.watched_changes:
            return self._is_undone(error, draws_again=self._rewinds)
        return is_undoable(progress, draws_again=self._rewinds)

    def _is_undone(self, error: BaseException, *, draws_again: bool) -> bool:
        allowed = is_undone if draws_again else is_pure
        if self.undo is None:
            return False
        return all(map(allowed, self.capture.graph_module.graph.nodes)) and self.undo(error)

    def _again(self, error: BaseException, values: Sequence[Any]) -> Any:
        _forget(error)
        result = call_with_values(self.function, values)
        get_logger("tracer").info(
            "%s ran as plain Python, as its graph failed: %s", self.function.__name__, error
        )
        return result

    def _noted(self, error: BaseException, reason: str) -> BaseException:
        text = _LOST.format(name=self.function.__name__, reason=reason)
        get_logger("tracer").warning("%s", text)
        error.add_note(text)
        error.__traceback__ = with_user_lines(error.__traceback__, self.module)
        return error


def _forget(error: BaseException) -> None:
    """Let go of the frames that an error came through which nobody sees.

    A checkpoint whose function raises leaves its hooks of saved tensors on, up to torch 2.11, as
    long as its frame lives.
    """
    around, each = sys.exception(), [error]
    while each:
        one = each.pop()
        if one is not around and one.__traceback__ is not None:
            one.__traceback__ = None
            each += [found for found in (one.__cause__, one.__context__) if found is not None]


def prepared(
    function: types.FunctionType, capture: Capture, run: Callable[..., Any]
) -> tuple[Callable[..., Any], Aftermath]:
    """A graph's call, and what the call of `function` does where that fails.

    Args:
        function: what is called.
        capture: the call as it was traced.
        run: what the backend has made of its graph.
    """
    module = capture.graph_module
    in_order = runs_in_order(run, capture)
    made = run
    prepare = capture.preparation
    rewinds = is_rewound(module.graph, is_set=prepare is not None and bool(prepare.steps))
    run, undo = _undoing(capture, made)
    if (capture.state.has_checks or rewinds) and run is made:
        run = getattr(made, "unchanged_on_error", made)  # it does not try in another way first
    uninterrupted = None
    if not in_order and _is_interruptible(module.graph):
        run = uninterrupted = Uninterrupted(run, module.graph)
    if _is_captured(run, capture) and not all(map(_is_without_trace, module.graph.nodes)):
        module = keeping(module)
        run = module.forward
    if not rewinds and prepare is None:
        return run, Aftermath(function, capture, module, undo, None, uninterrupted, in_order)
    drawing = Rewinding(run, prepare, rewinds=rewinds)
    return drawing, Aftermath(function, capture, module, undo, drawing, uninterrupted, in_order)


def _is_interruptible(graph: fx.Graph) -> bool:
    """Whether a graph changes tensors of the caller's, and runs no code of the user's, which might
    wait for a signal."""
    memory = memory_of_inputs(graph.nodes)
    changes = any(changes_inputs(node, memory) for node in graph.nodes)
    return changes and all(map(is_undone, graph.nodes))


def runs_in_order(run: Callable[..., Any], capture: Capture) -> bool:
    """Whether a graph's call runs its nodes one by one, as they were captured.

    What a backend returns may say so by an attribute of this name.
    """
    return _is_captured(run, capture) or bool(getattr(run, "runs_in_order", False))


def _is_captured(run: Callable[..., Any], capture: Capture) -> bool:
    """Whether a graph's call is that of the graph module as it is."""
    return getattr(run, "__self__", None) is capture.graph_module


def _is_without_trace(node: fx.Node) -> bool:
    """Whether nothing shows of a node that has run, but what it has drawn."""
    return is_undone(node) and not changed_by(node)


def _may_fail(module: fx.GraphModule) -> bool:
    """Whether an operator of a graph, or of functions that it calls, fails for some values."""
    graphs = [each.graph for each in module.modules() if isinstance(each, fx.GraphModule)]
    return any(is_fallible(node.target, node.args) for graph in graphs for node in graph.nodes)


def _undoing(
    capture: Capture, run: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[[BaseException], bool] | None]:
    """A graph's call, and what takes back what it changed of its inputs."""
    graph = capture.graph_module.graph
    memory = memory_of_inputs(graph.nodes)
    if not any(changes_inputs(node, memory) for node in graph.nodes):
        return run, lambda error: True
    may_fail = capture.state.has_checks or _may_fail(capture.graph_module)
    if _is_captured(run, capture) or not may_fail:
        return run, None
    if not capture.state.has_checks and not all(map(is_undone, graph.nodes)):
        return run, None  # nobody could begin again
    places = changed_places(graph)
    careful = getattr(run, "unchanged_on_error", None)
    if careful is not None:
        watched = Watched(careful, places)
        return watched, watched.is_unchanged
    must_undo = capture.state.has_checks or capture.state.watched_changes
    if not Saving.is_cheap(graph, places) or (must_undo and _recorded(graph, places)):
        return run, None
    saving = Saving(run, places)
    return saving, saving.restore


def _recorded(graph: fx.Graph, places: Sequence[int]) -> bool:
    """Whether autograd records a change of inputs at some places: values alone do not undo it."""
    placeholders = graph.find_nodes(op="placeholder")
    return any(placeholders[place].meta["val"].requires_grad for place in places)
