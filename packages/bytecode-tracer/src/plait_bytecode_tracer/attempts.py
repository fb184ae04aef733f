"""Traces of a call that no specialisation fits: with symbolic numbers, static, as plain Python."""

from __future__ import annotations

import types
from collections.abc import Container, Mapping, Sequence
from typing import Any

from plait_bytecode_tracer.breaking.moments import WATCHES, Known
from plait_bytecode_tracer.breaking.origins import is_chain, lines_at, origin_of
from plait_bytecode_tracer.capture import Capture, WholeCallEagerError
from plait_bytecode_tracer.capturing import eager_capture
from plait_bytecode_tracer.errors import BREAKS, GraphBreak
from plait_bytecode_tracer.guards import TensorValue, same_constant
from plait_bytecode_tracer.outside.draws import MAX_DECIDED, UNDECIDED, assumes_draws
from plait_bytecode_tracer.settings import Settings
from plait_bytecode_tracer.shapes.marks import Mark
from plait_bytecode_tracer.shapes.policy import Checks, History, Policy
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tracing import trace
from plait_utils import dataclass, get_logger

MAX_VALUES = 3
"""How many values of one computation on input tensors get specialisations of their own."""


class _Everything:
    def __contains__(self, key: object) -> bool:
        return True


def undecided(known: Sequence[Capture], limit: int) -> Container[str]:
    """The values of input tensors that a further specialisation does not assume.

    Those that have been different things already; all, in the last specialisation that
    may be made.
    """
    if known and len(known) >= limit - 1:
        return _Everything()
    values: dict[str, list[object]] = {}
    by_chance = sum(assumes_draws(capture.guards) for capture in known)
    for capture in known:
        for guard in capture.guards:
            expected = guard.expected
            if type(expected) is TensorValue:
                seen = values.setdefault(expected.key, [])
                if not any(same_constant(expected.value, value) for value in seen):
                    seen.append(expected.value)
    found = frozenset(key for key, seen in values.items() if len(seen) >= MAX_VALUES)
    return found | {UNDECIDED} if by_chance >= MAX_DECIDED else found


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is known of a function when a call of it is to be traced."""

    function: types.FunctionType
    settings: Settings
    history: History
    """What it has been called with."""
    marks: Mapping[str, Mark]
    """What was said of its arguments by name."""
    known: Sequence[Capture]
    """Its specialisations so far."""
    checks: Checks = Checks.ANYWHERE
    """Where its graph may check data."""
    watched_changes: bool = True
    """Whether its graph may change tensors of the caller's, and fail, where somebody sees that."""

    def capture(
        self, values: tuple[Any, ...], arrived: Sequence[int]
    ) -> tuple[Capture, GraphBreak | None]:
        """Trace a call; where nothing of it can be captured, one that runs as plain Python.

        Then it also says why. A fault of the tracer's own becomes such a call too, and a warning.
        """
        try:
            return self._traced(values, self.settings.dynamic, arrived), None
        except WholeCallEagerError as error:
            graph_break, state = error.graph_break, error.state
        except Exception as error:
            reason = f"the tracer failed: {type(error).__name__}: {error}"
            kind = BREAKS["GB0012"]
            get_logger("tracer").warning("%s", reason, exc_info=True)
            lines = lines_at(self.function)
            graph_break, state = GraphBreak(kind.code, reason, lines, kind.hint), None
        if graph_break.code in WATCHES and state is not None:
            state.release()
            state = None  # guards hold what they compare: all calls run as Python
        return eager_capture(self.function, state or TraceState(), graph_break), graph_break

    def _specific(self) -> int:
        """How many specialisations may assume the values of what changes.

        What goes on in a loop over a break needs some more: for its end, for other branches.
        """
        limit = self.settings.recompile_limit
        code = self.function.__code__
        goes_on = is_chain(code) or origin_of(code) is not None
        return max(limit // 2 if goes_on else limit - 1, 1)

    def _traced(
        self, values: tuple[Any, ...], dynamic: bool | None, arrived: Sequence[int]
    ) -> Capture:
        """Trace with what has changed as symbolic numbers; without any where that fails."""

        is_last = not self.settings.fullgraph and len(self.known) >= self._specific()

        def policy() -> Policy:
            may = dynamic is not False
            depends = self.settings.data_dependent and may
            floats = self.settings.data_floats and may
            orders = self.settings.orders_draws
            sizes = self.settings.data_sizes and may
            return Policy(
                *(dynamic, self.history, self.marks, depends, floats, sizes),
                *(self.checks, orders, self.watched_changes, is_last),
            )

        capture: Capture | None = None
        try:
            places = self.settings.continuations
            made = Known(places, len(places))
            unread = undecided(self.known, self.settings.recompile_limit)
            capture = trace(self.function, values, unread, policy, made, arrived)
        except Exception as error:
            state = error.state if isinstance(error, WholeCallEagerError) else None
            if dynamic is False or (state is not None and state.symbols is None):
                raise
            get_logger("tracer").debug("sizes stay static: %s", error, exc_info=True)
            if state is not None:
                state.release()
        if capture is None or _breaks_over_symbols(capture):
            static = self._traced(values, False, arrived)
            if capture is None:
                return static
            unused = static if _same_break(capture, static) else capture
            unused.state.release()
            if unused is capture:
                return static
        capture.state.policy.remember()
        return capture


def _breaks_over_symbols(capture: Capture) -> bool:
    """Whether a trace breaks where one without symbolic numbers may go on."""
    found = capture.graph_break
    return (
        found is not None
        and capture.state.symbols is not None
        and found.code in ("GB0008", "GB0009")
    )


def _same_break(one: Capture, other: Capture) -> bool:
    """Whether two traces break at the same place, for the same reason."""
    first, second = one.graph_break, other.graph_break
    if first is None or second is None:
        return False
    return (first.code, first.line) == (second.code, second.line)
