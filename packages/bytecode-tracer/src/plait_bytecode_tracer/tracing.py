"""Tracing one call of a function: from bytecode to a `Capture`."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

import torch

from plait_bytecode_tracer.breaking.moments import Known, break_moments
from plait_bytecode_tracer.breaking.origins import is_chain, origin_of, shown_parameter
from plait_bytecode_tracer.capture import Capture, WholeCallEagerError
from plait_bytecode_tracer.capturing import capture_at_break, finished_capture, whole_call
from plait_bytecode_tracer.errors import BREAKS, GraphBreak, TooLongError, TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, errors_let_go
from plait_bytecode_tracer.exceptions.tracebacks import raising_lines
from plait_bytecode_tracer.failing import runs_torch_alone
from plait_bytecode_tracer.frames.binding import parameter_names
from plait_bytecode_tracer.frames.frame import BreakHere, Frame, Function
from plait_bytecode_tracer.frames.pace import Moment, Pace
from plait_bytecode_tracer.outside.assumptions import (
    guard_class_attribute,
    guard_no_hooks,
    guard_no_own,
)
from plait_bytecode_tracer.outside.modes import guard_modes
from plait_bytecode_tracer.outside.wrapping import wrap_cell
from plait_bytecode_tracer.shapes.policy import Policy
from plait_bytecode_tracer.shapes.read_ints import Asked, ValueAskedError
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.histories import is_refused_as_leaf
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.plain import HOOKS
from plait_bytecode_tracer.values.sources import argument
from plait_bytecode_tracer.values.variables import UnreadVariable
from plait_utils import get_logger

SUPPORTED_VERSIONS = ((3, 11), (3, 12), (3, 13))
MAX_CHANGES = 3
"""How often the second trace of a call may go another way than the first."""
CHANGES_WHILE_TRACED = "what the call reads changes while it is traced, as by another thread"


def trace(
    function: types.FunctionType,
    values: Sequence[Any],
    undecided: Container[str] = (),
    policy: Callable[[], Policy] = Policy,
    known: Known | None = None,
    arrived: Sequence[int] = (),
) -> Capture:
    """Trace a call of `function` with `values`, one for each parameter in local order.

    `undecided` are the values of input tensors that are not to be guarded: a branch on
    one breaks the graph. `known` are the continuations that there are already. Once a
    signal has `arrived`, Interrupted is raised.

    Raises WholeCallEagerError where not even a part of the call can be captured.
    """
    if sys.version_info[:2] not in SUPPORTED_VERSIONS:
        text = f"Python {sys.version_info[0]}.{sys.version_info[1]} is not traced yet"
        raise whole_call(function, "GB0001", text)
    places = known or Known()
    states: list[TraceState] = []
    kept: TraceState | None = None
    attempt = partial(_trace, function, values, undecided, policy, places, arrived, states)
    try:
        with errors_let_go():
            capture = _to_the_end(attempt)
        kept = capture.state
        return capture
    except WholeCallEagerError as error:
        kept = error.state
        raise
    finally:
        for state in states:
            if state is not kept:
                state.release()


def _to_the_end(attempt: Callable[[bool, str], Capture]) -> Capture:
    """A trace with what no break may come after; without, where one does."""
    try:
        capture = attempt(True, "")
    except WholeCallEagerError as error:
        if error.state is None or not error.state.needs_end:
            raise
        found: GraphBreak | None = error.graph_break
    else:
        if not capture.state.needs_end or _is_whole(capture):
            return capture
        found = capture.graph_break
    return attempt(False, "" if found is None else found.reason)


def _is_whole(capture: Capture) -> bool:
    """Whether a trace came to its end, and nothing that it runs may want the locks it takes."""
    state = capture.state
    if capture.graph_break is not None or state.locks.is_held:
        return False
    if not state.locks.taken:
        return True
    return not state.deferred and runs_torch_alone(capture.graph_module.graph)


def _trace(
    function: types.FunctionType,
    values: Sequence[Any],
    undecided: Container[str],
    policy: Callable[[], Policy],
    known: Known,
    arrived: Sequence[int],
    states: list[TraceState],
    to_the_end: bool,
    not_to_the_end: str,
) -> Capture:
    """`trace`, with what no break may come after traced, or breaking the graph there.

    Each state that it begins is added to `states`.
    """
    moments: list[Moment] = []
    reason: GraphBreak | None = None
    changes = 0
    gives_histories = False
    asked = Asked()
    while True:
        state = TraceState(
            pace=Pace(arrived=arrived, break_step=moments[0].step if moments else -1),
            undecided=undecided,
            policy=policy(),
            to_the_end=to_the_end,
            not_to_the_end=not_to_the_end,
            gives_histories=gives_histories,
            asked=asked,
        )
        states.append(state)
        try:
            frame = _root_frame(function, values, state)
        except TraceBreakError as error:
            raise whole_call(function, error.kind.code, error.reason, state) from error
        try:
            result = frame.run()
            return finished_capture(function, frame, state, result)
        except BreakHere as here:
            assert reason is not None
            if here.frame.moment != moments[0]:
                changes += 1
                if changes == MAX_CHANGES:
                    raise whole_call(function, "GB0001", CHANGES_WHILE_TRACED, state) from None
                moments = []
                continue
            if state.half_hooked or state.derivatives.retained:  # traced again, it breaks there
                raise WholeCallEagerError(reason, state) from None
            try:
                return capture_at_break(function, here.frame, state, reason, known)
            except Exception as error:  # a call that cannot be resumed here may be further out
                get_logger("tracer").debug("cannot resume: %s", error, exc_info=True)
                text = f"{reason.reason} ({getattr(error, 'reason', error)})"
            moments.pop(0)
            if not moments:
                found = GraphBreak(reason.code, text, reason.lines, reason.hint)
                raise WholeCallEagerError(found, state) from None
        except RecursionError as error:
            text = "values or calls that are nested deeper than the tracer follows"
            raise whole_call(function, "GB0002", text, state) from error
        except ValueAskedError as caught:
            asked.add(caught.place, caught.why)
            moments = []
        except (TraceBreakError, PythonError) as caught:
            if not gives_histories and is_refused_as_leaf(caught, state):
                gives_histories = True
                continue
            innermost: Frame = frame if caught.frame is None else caught.frame
            reason = _reason(caught, innermost)
            moments = break_moments(innermost, reason)
            if not moments or state.pace.break_step >= 0 or isinstance(caught, TooLongError):
                raise WholeCallEagerError(reason, state) from caught


def _reason(error: TraceBreakError | PythonError, innermost: Frame) -> GraphBreak:
    """Why a trace ends; an exception that nothing in the traced code handles ends it too.

    Nothing keeps the error: its traceback holds what the call was given.
    """
    if isinstance(error, TraceBreakError):
        return GraphBreak(error.kind.code, error.reason, innermost.lines(), error.kind.hint)
    lines = raising_lines(error.value) or innermost.lines()
    return GraphBreak("GB0006", f"{error} is raised", lines, BREAKS["GB0006"].hint)


def trace_to(
    function: types.FunctionType, values: Sequence[Any], earlier: TraceState, step: int, line: str
) -> tuple[Frame, ...]:
    """Trace a call again as it was traced `earlier`, up to an instruction of a line; the frames
    that run there, innermost last.

    Raises TraceBreakError where the trace does not come there.
    """
    state = TraceState(
        pace=Pace(break_step=step),
        undecided=earlier.undecided,
        policy=earlier.policy.again(),
        to_the_end=earlier.to_the_end,
        not_to_the_end=earlier.not_to_the_end,
        gives_histories=earlier.gives_histories,
        asked=earlier.asked,
        earlier=earlier,
    )
    try:
        with errors_let_go():
            _root_frame(function, values, state).run()
    except BreakHere as here:
        if here.line == line:
            return here.running
    raise TraceBreakError("GB0001", "a trace that does not come to where an earlier one came")


def _root_frame(
    function: types.FunctionType,
    values: Sequence[Any],
    state: TraceState,
) -> Frame:
    code = function.__code__
    closure = [
        wrap_cell(state, cell, name)
        for cell, name in zip(function.__closure__ or (), code.co_freevars, strict=True)
    ]
    frame = state.frames.root = Frame(state, Function(code, function.__globals__, closure), {})
    state.frames.lines.append(lambda: f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}")
    guard_modes(state)
    goes_on = state.goes_on = is_chain(code) or origin_of(code) is not None
    for n, (name, value) in enumerate(zip(parameter_names(code), values, strict=True)):
        source = argument(n, shown_parameter(name) if goes_on else name)
        if goes_on and not is_constant(value) and not is_a(value, types.ModuleType):
            state.world.arguments.append(value)
        later = goes_on and not is_a(value, torch.nn.Module)
        frame.locals[name] = UnreadVariable(value, source) if later else state.wrap(value, source)
    if values and is_a(values[0], torch.nn.Module):
        _guard_plain_forward(function, values[0], state)
    state.frames.lines.pop()
    return frame


def _guard_plain_forward(
    function: types.FunctionType, module: torch.nn.Module, state: TraceState
) -> None:
    """Guard, if it is so now, that calling the module does nothing but call this forward."""
    own, shared = module.__dict__, torch.nn.modules.module.__dict__
    hooked = any(own[name] or shared[f"_global{name}"] for name in HOOKS)
    if type(module).forward is not function or hooked or "forward" in own:
        return
    source = argument(0, parameter_names(function.__code__)[0])
    guard_no_own(state, source, "forward", plain=True)
    guard_class_attribute(state, type(module), "forward")
    guard_no_hooks(state, source, module)
    state.is_plain_forward = True
