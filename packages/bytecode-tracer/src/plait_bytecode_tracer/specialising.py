"""A specialisation in the making: a trace of a call, and what a backend makes of its graph."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.aftermath.counting import Counted
from plait_bytecode_tracer.attempts import Attempt
from plait_bytecode_tracer.capture import Capture
from plait_bytecode_tracer.entries import Entry, draft_entry
from plait_bytecode_tracer.errors import FullGraphError, GraphBreak
from plait_bytecode_tracer.frames.binding import parameter_names
from plait_bytecode_tracer.graph_call import as_captured, graph_call
from plait_bytecode_tracer.limits import Modules, modules_served
from plait_bytecode_tracer.settings import Settings
from plait_bytecode_tracer.shapes.marks import Mark
from plait_bytecode_tracer.shapes.policy import Checks, History
from plait_utils import dataclass
from plait_utils.checks import CheckFailedError
from plait_utils.interrupts import without_interrupts

if TYPE_CHECKING:
    from plait_bytecode_tracer.failing import Failed
    from plait_bytecode_tracer.stored.keeping import Keeper


@dataclass(frozen=True, slots=True)
class Compiled:
    """What runs the graph of a capture.

    Attributes:
        run: calls it; None where there is nothing to call.
        failed: what a call does where the graph fails.
        computes: whether the graph computes anything.
    """

    run: Any
    failed: Failed | None
    computes: bool


@dataclass(slots=True)
class Specialising:
    """What is known of a function when a call of it is to be specialised for.

    Attributes:
        name: under which the function is shown.
        function: what is called.
        settings: those of its compilation.
        history: what it has been called with.
        marks: what was said of its arguments by name.
        entries: its specialisations so far.
        keeper: keeps specialisations for other processes, if anything does.
        give_up_checks: called by a graph whose checks of data have failed too often.
        checks: where graphs may check data; fewer each time that these could not be undone.
        watched_changes: whether graphs may change tensors of the caller's, and fail, where somebody
            sees that.
    """

    name: str
    function: types.FunctionType
    settings: Settings
    history: History
    marks: Mapping[str, Mark]
    entries: Sequence[Entry]
    keeper: Keeper | None
    give_up_checks: Callable[[], None]
    checks: Checks
    watched_changes: bool = True

    def traced(self, values: tuple[Any, ...]) -> tuple[Capture, GraphBreak | None, Modules]:
        """A trace of a call, why it is one that runs as plain Python, if it is, and what the call
        is about."""
        settings = self.settings
        if settings.before_trace is not None:
            settings.before_trace(values)
        with settings.profile.phase("trace"):
            modules = modules_served(self.function.__code__, values)
            known = [entry.capture for entry in self.entries if entry.modules == modules]
            attempt = Attempt(
                *(self.function, settings, self.history, self.marks, known),
                *(self.checks, self.watched_changes),
            )
            capture, eager_reason = without_interrupts(partial(attempt.capture, values))
        return capture, eager_reason, modules

    def compiled(self, capture: Capture) -> Compiled | None:
        """What runs the graph of a trace; None where the call is to be traced again, with less in
        its graph."""
        nodes = capture.graph_module.graph.nodes
        computes = any(node.op not in ("placeholder", "output") for node in nodes)
        if not computes and capture.preparation is None:
            return Compiled(None, None, computes)
        backend = self.settings.backend if computes else as_captured
        if self.keeper is not None:
            self.keeper.begin(self.function, capture)
        count = len(parameter_names(self.function.__code__))
        capture.meanwhile = partial(draft_entry, self.name, capture, count)
        try:
            run, aftermath = graph_call(self.function, backend, capture)
        except CheckFailedError:  # the backend cannot check what is assumed of data
            self.checks = Checks.NEVER
            capture.state.release()
            return None
        finally:
            capture.meanwhile = None
        if not aftermath.undoes_changes:
            self.watched_changes = False
            capture.state.release()
            return None
        if not aftermath.undoes_checks:
            is_late = capture.state.checks_after_changes
            self.checks = Checks.UNCHANGED if is_late else Checks.NEVER
            capture.state.release()
            return None
        failed: Failed = aftermath
        if capture.state.has_checks:
            failed = Counted(aftermath, self.give_up_checks)
        if computes:
            self.settings.profile.count("graphs")
        return Compiled(run, failed, computes)


def full_graph_error(graph_break: GraphBreak) -> FullGraphError:
    """The error for a graph break where none is allowed."""
    return FullGraphError(
        f"graph break [{graph_break.code}] under fullgraph=True: {graph_break.reason}",
        where=graph_break.line,
        hint=graph_break.hint,
    )
