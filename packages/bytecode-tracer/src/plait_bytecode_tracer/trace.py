"""Tracing one call of a function: from bytecode to a `Capture`."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad

from plait_bytecode_tracer.breaking.breaks import Continuation, Known, break_steps, go_on
from plait_bytecode_tracer.breaking.resume import is_chain, lines_at, origin_of, shown_parameter
from plait_bytecode_tracer.errors import BREAKS, GraphBreak, TooLongError, TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError
from plait_bytecode_tracer.exceptions.tracebacks import raising_lines
from plait_bytecode_tracer.failing import runs_torch_alone
from plait_bytecode_tracer.frames.binding import parameter_names
from plait_bytecode_tracer.frames.frame import BreakHere, Frame, Function
from plait_bytecode_tracer.frames.pace import Pace
from plait_bytecode_tracer.guards import Guard, GuardTree, Kind, Mode, Reads, guard_tree
from plait_bytecode_tracer.outside.aliasing import (
    changes_shared_history,
    guard_distinct,
    guard_memory,
    guard_shared_storage,
    refuse_shared,
)
from plait_bytecode_tracer.outside.assumptions import (
    guard_class_attribute,
    guard_no_hooks,
    guard_no_own,
)
from plait_bytecode_tracer.outside.mourning import refuse_deaths
from plait_bytecode_tracer.outside.tensors import GraphInput, guard_requires_grad
from plait_bytecode_tracer.outside.wrapping import wrap_cell
from plait_bytecode_tracer.residual.effects import replay_effects
from plait_bytecode_tracer.residual.rebuild import Rebuilder
from plait_bytecode_tracer.rules.tensor_hooks import refuse_late_changes
from plait_bytecode_tracer.shapes.policy import Policy
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.ambient import (
    AUTOCAST_DEVICES,
    bound,
    enter_inference_mode,
    entered_modes,
)
from plait_bytecode_tracer.tensors.dead_nodes import drop_dead_nodes
from plait_bytecode_tracer.tensors.histories import guard_histories, is_refused_as_leaf
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.keys import all_distinct, key_object
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.plain import HOOKS
from plait_bytecode_tracer.values.sources import Source, argument
from plait_bytecode_tracer.values.variables import UnreadVariable, Variable
from plait_utils import get_logger

SUPPORTED_VERSIONS = ((3, 11), (3, 12), (3, 13))


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
            outputs = [*self.sources, *self.reads.sources.values()]
            self.tree = guard_tree(self.state.guards, outputs)

    @property
    def example_inputs(self) -> tuple[Any, ...]:
        """The fake tensor of each placeholder; a SymInt or float of one that is a number."""
        return tuple(i.node.meta["val"] for i in self.inputs)


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
    signal has `arrived`, TraceInterrupt is raised.

    Raises WholeCallEagerError where not even a part of the call can be captured.
    """
    if sys.version_info[:2] not in SUPPORTED_VERSIONS:
        text = f"Python {sys.version_info[0]}.{sys.version_info[1]} is not traced yet"
        raise _whole(function, "GB0001", text)
    places = known or Known()
    states: list[TraceState] = []
    kept: TraceState | None = None
    attempt = partial(_trace, function, values, undecided, policy, places, arrived, states)
    try:
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
    steps: list[int] = []
    reason: GraphBreak | None = None
    gives_histories = False
    while True:
        state = TraceState(
            pace=Pace(arrived=arrived, break_step=steps[0] if steps else -1),
            undecided=undecided,
            policy=policy(),
            to_the_end=to_the_end,
            not_to_the_end=not_to_the_end,
            gives_histories=gives_histories,
        )
        states.append(state)
        try:
            frame = _root_frame(function, values, state)
        except TraceBreakError as error:
            raise _whole(function, error.kind.code, error.reason, state) from error
        try:
            result = frame.run()
            return _finish(function, frame, state, result)
        except BreakHere as here:
            assert reason is not None
            if state.half_hooked or state.derivatives.retained:  # traced again, it breaks there
                raise WholeCallEagerError(reason, state) from None
            try:
                return _finish_at_break(function, here.frame, state, reason, known)
            except Exception as error:  # a call that cannot be resumed here may be further out
                get_logger("tracer").debug("cannot resume: %s", error, exc_info=True)
                text = f"{reason.reason} ({getattr(error, 'reason', error)})"
            steps.pop(0)
            if not steps:
                found = GraphBreak(reason.code, text, reason.lines, reason.hint)
                raise WholeCallEagerError(found, state) from None
        except RecursionError as error:
            text = "values or calls that are nested deeper than the tracer follows"
            raise _whole(function, "GB0002", text, state) from error
        except (TraceBreakError, PythonError) as caught:
            if not gives_histories and is_refused_as_leaf(caught, state):
                gives_histories = True
                continue
            innermost: Frame = frame if caught.frame is None else caught.frame
            reason = _reason(caught, innermost)
            steps = break_steps(innermost, reason)
            if not steps or state.pace.break_step >= 0 or isinstance(caught, TooLongError):
                raise WholeCallEagerError(reason, state) from caught


def _reason(error: TraceBreakError | PythonError, innermost: Frame) -> GraphBreak:
    """Why a trace ends; an exception that nothing in the traced code handles ends it too.

    Nothing keeps the error: its traceback holds what the call was given.
    """
    if isinstance(error, TraceBreakError):
        return GraphBreak(error.kind.code, error.reason, innermost.lines(), error.kind.hint)
    lines = raising_lines(error.value) or innermost.lines()
    return GraphBreak("GB0006", f"{error} is raised", lines, BREAKS["GB0006"].hint)


def _whole(
    function: types.FunctionType, code: str, reason: str, state: TraceState | None = None
) -> WholeCallEagerError:
    error = TraceBreakError(code, reason)
    lines = lines_at(function)
    return WholeCallEagerError(GraphBreak(code, reason, lines, error.kind.hint), state)


def trace_to(
    function: types.FunctionType, values: Sequence[Any], earlier: TraceState, step: int
) -> tuple[Frame, ...]:
    """Trace a call again as it was traced `earlier`, up to an instruction; the frames that run
    there, innermost last.

    Raises TraceBreakError where the trace does not come there.
    """
    state = TraceState(
        pace=Pace(break_step=step),
        undecided=earlier.undecided,
        policy=earlier.policy.again(),
        to_the_end=earlier.to_the_end,
        not_to_the_end=earlier.not_to_the_end,
    )
    try:
        _root_frame(function, values, state).run()
    except BreakHere as here:
        return here.running
    raise TraceBreakError("GB0001", "a trace that ends before where an earlier one came")


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
    frame = Frame(state, Function(code, function.__globals__, closure), {})
    state.frames.lines.append(lambda: f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}")
    _guard_surroundings(state)
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
    guard_no_hooks(state, source)
    state.is_plain_forward = True


def _guard_surroundings(state: TraceState) -> None:
    """The modes under which every operation of the trace runs."""
    modes: tuple[tuple[str, Callable[[], object]], ...] = (
        ("gradients", torch.is_grad_enabled),
        ("inference mode", torch.is_inference_mode_enabled),
        ("autocast", torch._C._is_any_autocast_enabled),
        ("default dtype", torch.get_default_dtype),
        ("active dispatch modes", torch._C._len_torch_dispatch_stack),
        ("default devices", default_devices),
        ("function transforms", is_transforming),
        ("hooks of saved tensors", has_saved_tensor_hooks),
        ("forward-mode differentiation", forward_level),
    )
    for text, function in modes:
        value = function()
        quick = _QUICK.get(function)
        found = Mode(function, value) if value or quick is None else Mode(*quick)
        state.require(None, Kind.MODE, found, f"{text}: {value}")
    if torch._C._is_any_autocast_enabled():
        _guard_autocast(state)
    if torch._C._len_torch_dispatch_stack():
        raise TraceBreakError("GB0002", "a dispatch mode is active")
    if None in default_devices():
        raise TraceBreakError("GB0002", "a torch function mode is active")
    if has_saved_tensor_hooks():
        raise TraceBreakError("GB0002", "hooks of saved tensors are active")
    if forward_level() != NO_FORWARD_LEVEL:
        raise TraceBreakError("GB0002", "derivatives in forward mode are being computed")
    if is_transforming():
        raise TraceBreakError("GB0002", "a function transform of torch.func is active")


def _guard_autocast(state: TraceState) -> None:
    """What autocast does, where it is on at the call."""
    for device in AUTOCAST_DEVICES:
        for getter in (torch.is_autocast_enabled, torch.get_autocast_dtype):
            read = bound(getter, (device,))
            text = f"{getter.__name__}({device!r}) is {read()!r}"
            state.require(None, Kind.MODE, Mode(read, read()), text)


def default_devices() -> tuple[torch.device | None, ...]:
    """The default device, if one is set; None for each torch function mode that is active."""
    count = torch._C._len_torch_function_stack()
    if count == 0:
        return ()
    others = entered_modes()
    bottom: Any = torch._C._get_function_stack_at(0)
    devices = () if others == count else (bottom.device,)
    return (*devices, *[None] * others)


def has_saved_tensor_hooks() -> bool:
    """Whether autograd calls Python for each tensor that it saves, as it would while tracing."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def is_transforming() -> bool:
    """Whether a transform such as vmap or grad is calling."""
    return torch._C._functorch.peek_interpreter_stack() is not None


NO_FORWARD_LEVEL = -1
forward_level: Callable[[], object] = functools.partial(
    vars(forward_ad).__getitem__, "_current_level"
)
"""How many `forward_ad.dual_level()` are entered, less one: tensors may carry derivatives then."""
_top_hooks = functools.partial(torch._C._autograd._top_saved_tensors_default_hooks, True)
_QUICK: dict[Callable[[], object], tuple[Callable[[], object], object]] = {
    default_devices: (torch._C._len_torch_function_stack, 0),
    is_transforming: (torch._C._functorch.peek_interpreter_stack, None),
    has_saved_tensor_hooks: (_top_hooks, None),
}
"""Functions of torch that tell at once that a mode is not there, and what they return then."""


def _finish(
    function: types.FunctionType, frame: Frame, state: TraceState, result: Variable
) -> Capture:
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


def _finish_at_break(
    function: types.FunctionType,
    frame: Frame,
    state: TraceState,
    reason: GraphBreak,
    known: Known,
) -> Capture:
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
    graph.output(tuple(rebuilder.outputs))
    if state.symbols is not None:
        state.symbols.guard_rest()
    if not state.grad_enabled_before and _switches_gradients(graph):
        guard_requires_grad(state)
    _guard_keys(state)
    guard_distinct(state)
    if state.mutates_tensors:
        guard_histories(state)
        if changes_shared_history(state):
            text = "an input that shares memory is changed where gradients are recorded"
            raise _whole(function, "GB0009", text, state)
        guard_shared_storage(state)
    else:
        drop_dead_nodes(graph)
    module = fx.GraphModule(state.scope.holder, graph, function.__name__)
    reads = rebuilder.writer
    rebuilder.release()
    return Capture(
        module,
        tuple(state.inputs),
        guard_tree(state.guards, [*(i.source for i in state.inputs), *reads.sources.values()]),
        graph_break,
        continuation,
        state,
        lines,
        reads,
        state.is_plain_forward,
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
