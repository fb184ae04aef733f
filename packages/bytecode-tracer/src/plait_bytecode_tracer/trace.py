"""Tracing one call of a function: from bytecode to a `Capture`."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import GraphBreak, TraceBreakError
from plait_bytecode_tracer.exception_table import handler_at
from plait_bytecode_tracer.frame import NULL, Frame, Function, RootBreak, instructions_of
from plait_bytecode_tracer.guards import (
    Guard,
    GuardTree,
    Kind,
    Mode,
    Reads,
    StoragePattern,
    guard_tree,
    storage_pattern,
)
from plait_bytecode_tracer.raising import PythonError
from plait_bytecode_tracer.rebuild import Rebuilder
from plait_bytecode_tracer.resume import (
    STACK_PREFIX,
    break_function,
    resume_function,
    stack_effect,
)
from plait_bytecode_tracer.sources import Source, argument
from plait_bytecode_tracer.state import GraphInput, TraceState
from plait_bytecode_tracer.variables import Variable

SUPPORTED_VERSIONS = ((3, 11), (3, 12))


class WholeCallEagerError(Exception):
    """The call must run as eager Python as a whole; says why."""

    def __init__(self, graph_break: GraphBreak, state: TraceState | None = None) -> None:
        super().__init__(graph_break.reason)
        self.graph_break = graph_break
        self.state = state
        """The trace as far as it came: while its guards hold, calls end here again."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """What follows a graph break: how Python goes on."""

    kind: str
    """"rest", "jump" or "eager"."""
    functions: tuple[types.FunctionType, ...]
    """Where to go on: one function, or those for a true and a false condition."""
    breaking: types.FunctionType | None = None
    """Runs the instruction that broke and then the rest."""


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

    @property
    def guards(self) -> tuple[Guard, ...]:
        """All that was assumed, in the order of checking."""
        return self.tree.guards

    @property
    def sources(self) -> tuple[Source, ...]:
        """How each placeholder is read from the call."""
        return tuple(graph_input.source for graph_input in self.inputs)

    @property
    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        """The fake tensor of each placeholder."""
        return tuple(i.node.meta["val"] for i in self.inputs)


def parameter_names(code: types.CodeType) -> tuple[str, ...]:
    """The names of a function's parameters in the order of its locals."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS)
    count += bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def trace(function: types.FunctionType, values: Sequence[Any]) -> Capture:
    """Trace a call of `function` with `values`, one for each parameter in local order.

    Raises WholeCallEagerError where not even a part of the call can be captured.
    """
    if sys.version_info[:2] not in SUPPORTED_VERSIONS:
        reason = f"Python {sys.version_info[0]}.{sys.version_info[1]} is not traced yet"
        raise _whole(function, "GB0001", reason)
    broken: dict[int, GraphBreak] = {}
    while True:
        state = TraceState()
        try:
            frame = _root_frame(function, values, state, frozenset(broken))
        except TraceBreakError as error:
            raise _whole(function, error.kind.code, error.reason, state) from error
        try:
            with torch.random.fork_rng(enabled=False):
                result = frame.run()
            return _finish(function, frame, state, result)
        except RootBreak:
            at_break = broken[frame.instruction.offset]
            return _finish_at_break(function, frame, state, at_break)
        except (TraceBreakError, PythonError) as caught:
            cause = _as_break(caught)
            line = _innermost_line(cause, frame)
            found = GraphBreak(cause.kind.code, cause.reason, line, cause.kind.hint)
            looks_here = cause.kind.code == "GB0013" and _innermost_frame(cause, frame) is frame
            if frame.handling or looks_here or frame.instruction.offset in broken:
                raise WholeCallEagerError(found, state) from caught
            broken[frame.instruction.offset] = found


def _as_break(error: TraceBreakError | PythonError) -> TraceBreakError:
    """An exception that nothing in the traced code handles breaks the trace before it."""
    if isinstance(error, TraceBreakError):
        return error
    made = TraceBreakError("GB0006", f"{error} is raised")
    made.__traceback__ = error.__traceback__
    return made


def _is_covered(frame: Frame) -> bool:
    """Whether exceptions at the frame's instruction have a handler, which must stay around it."""
    return handler_at(frame.code, frame.instruction.offset) is not None


def _innermost_line(error: TraceBreakError, root: Frame) -> str:
    """The user's line of the deepest frame that was being traced."""
    return _innermost_frame(error, root).line()


def _innermost_frame(error: TraceBreakError, root: Frame) -> Frame:
    """The deepest frame that was being traced."""
    found = root
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame.f_locals.get("self")
        if isinstance(frame, Frame):
            found = frame
        traceback = traceback.tb_next
    return found


def _whole(
    function: types.FunctionType, code: str, reason: str, state: TraceState | None = None
) -> WholeCallEagerError:
    error = TraceBreakError(code, reason)
    where = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    return WholeCallEagerError(GraphBreak(code, reason, where, error.kind.hint), state)


def _root_frame(
    function: types.FunctionType,
    values: Sequence[Any],
    state: TraceState,
    break_at: frozenset[int],
) -> Frame:
    code = function.__code__
    closure = [
        state.wrap_cell(cell, name)
        for cell, name in zip(function.__closure__ or (), code.co_freevars, strict=True)
    ]
    frame = Frame(state, Function(code, function.__globals__, closure), {}, break_at=break_at)
    state.lines.append(lambda: f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}")
    _guard_surroundings(state)
    for n, (name, value) in enumerate(zip(parameter_names(code), values, strict=True)):
        frame.locals[name] = state.wrap(value, argument(n, name))
    state.lines.pop()
    return frame


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
    )
    for text, function in modes:
        value = function()
        quick = _QUICK.get(function)
        found = Mode(function, value) if value or quick is None else Mode(*quick)
        state.require(None, Kind.MODE, found, f"{text}: {value}")
    if torch._C._is_any_autocast_enabled():
        raise TraceBreakError("GB0002", "autocast is enabled")
    if torch._C._len_torch_dispatch_stack():
        raise TraceBreakError("GB0002", "a dispatch mode is active")
    if None in default_devices():
        raise TraceBreakError("GB0002", "a torch function mode is active")
    if is_transforming():
        raise TraceBreakError("GB0002", "a function transform of torch.func is active")


def default_devices() -> tuple[torch.device | None, ...]:
    """The devices of the active device contexts; None for each other torch function mode."""
    count = torch._C._len_torch_function_stack()
    if count == 0:
        return ()
    from torch.utils._device import DeviceContext

    active = [torch._C._get_function_stack_at(place) for place in range(count)]
    return tuple(mode.device if type(mode) is DeviceContext else None for mode in active)


def is_transforming() -> bool:
    """Whether a transform such as vmap or grad is calling."""
    return torch._C._functorch.peek_interpreter_stack() is not None


_QUICK: dict[Callable[[], object], tuple[Callable[[], object], object]] = {
    default_devices: (torch._C._len_torch_function_stack, 0),
    is_transforming: (torch._C._functorch.peek_interpreter_stack, None),
}
"""Functions of torch that tell at once that a mode is not there, and what they return then."""


def _finish(
    function: types.FunctionType, frame: Frame, state: TraceState, result: Variable
) -> Capture:
    rebuilder = Rebuilder(state, Reads())
    try:
        returned = rebuilder.value(result)
        rebuilder.effects()
    except TraceBreakError as error:
        found = GraphBreak(error.kind.code, error.reason, frame.line(), error.kind.hint)
        raise WholeCallEagerError(found, state) from error
    lines = (*rebuilder.lines, f"return {returned}")
    return _capture(function, state, rebuilder, lines, None, None)


def _finish_at_break(
    function: types.FunctionType, frame: Frame, state: TraceState, reason: GraphBreak
) -> Capture:
    rebuilder = Rebuilder(state, Reads())
    try:
        stack = [rebuilder.value(value) for value in frame.stack]
        nulls = [value is NULL for value in frame.stack]
        live = {
            name: rebuilder.value(value)
            for name, value in frame.locals.items()
            if not name.startswith(STACK_PREFIX)
        }
        for name in frame.code.co_cellvars:
            cell = frame.cells.get(name)
            if cell is not None and cell.content is not None:
                live[name] = rebuilder.value(cell.content)
        rebuilder.effects()
        if any(
            cell.original is None and id(cell) in rebuilder.names for cell in frame.cells.values()
        ):
            raise TraceBreakError("GB0009", "a function made before shares variables with the rest")
        lines, continuation = _continue(function, frame, stack, nulls, live)
    except TraceBreakError as error:
        found = GraphBreak(
            reason.code, f"{reason.reason} ({error.reason})", reason.line, reason.hint
        )
        raise WholeCallEagerError(found, state) from error
    except Exception as error:  # a continuation that cannot be assembled must not break the call
        found = GraphBreak(
            reason.code, f"{reason.reason} (cannot resume: {error})", reason.line, reason.hint
        )
        raise WholeCallEagerError(found, state) from error
    return _capture(function, state, rebuilder, (*rebuilder.lines, *lines), reason, continuation)


def _continue(
    function: types.FunctionType,
    frame: Frame,
    stack: list[str],
    nulls: list[bool],
    live: dict[str, str],
) -> tuple[list[str], Continuation]:
    """The lines that carry out the breaking instruction and go on after it."""
    instruction = frame.instruction
    instructions, _ = instructions_of(frame.code)
    following = instructions[frame.index + 1].offset if frame.index + 1 < len(instructions) else 0
    names, values = list(live), list(live.values())
    opname = instruction.opname
    covered = _is_covered(frame)
    if opname.startswith("POP_JUMP") and opname.endswith(("TRUE", "FALSE")) and not covered:
        jump = resume_function(function, instruction.argval, nulls[:-1], names)
        fall = resume_function(function, following, nulls[:-1], names)
        on_true = opname.endswith("TRUE")
        passed = ", ".join([*_present(stack[:-1], nulls[:-1]), *values])
        chosen = f"_resume[0 if bool({stack[-1]}) is {on_true} else 1]"
        return [f"return {chosen}({passed})"], Continuation("jump", (jump, fall))
    first = _first_of_call(frame)
    effect = stack_effect(opname, instruction.arg or 0)
    passed = ", ".join([*_present(stack, nulls), *values])
    if effect is None:
        target = resume_function(function, instructions[first].offset, nulls, names)
        return [f"return _resume[0]({passed})"], Continuation("eager", (target,))
    kept = nulls[: len(nulls) - effect[0]]
    rest = resume_function(function, following, [*kept, *[False] * effect[1]], names)
    offsets = instructions[first].offset, instruction.offset
    breaking = break_function(function, offsets, nulls, names, effect)
    given = ", ".join(["_Stopped", *([passed] if passed else [])])
    lines = [
        f"_stopped = _break({given})",
        "if _stopped.__class__ is not _Stopped: return _stopped",
        "_stopped = _stopped.values",
        "return _resume[0](*_stopped)",
    ]
    return lines, Continuation("rest", (rest,), breaking)


def _first_of_call(frame: Frame) -> int:
    """The index of the first instruction of a call that breaks: it names the keywords."""
    instructions, _ = instructions_of(frame.code)
    index = frame.index
    while index and instructions[index - 1].opname in ("PRECALL", "KW_NAMES"):
        index -= 1
    return index


def _present(stack: Sequence[str], nulls: Sequence[bool]) -> list[str]:
    return [value for value, is_null in zip(stack, nulls, strict=True) if not is_null]


def _capture(
    function: types.FunctionType,
    state: TraceState,
    rebuilder: Rebuilder,
    lines: tuple[str, ...],
    graph_break: GraphBreak | None,
    continuation: Continuation | None,
) -> Capture:
    graph = state.graph
    graph.output(tuple(rebuilder.outputs))
    if not state.grad_enabled_before and _switches_gradients(graph):
        state.guard_requires_grad()
    if state.mutates_tensors:
        _guard_aliasing(state)
    else:
        _drop_dead_nodes(graph)
    module = fx.GraphModule(torch.nn.Module(), graph, function.__name__)
    reads = rebuilder.writer
    return Capture(
        module,
        tuple(state.inputs),
        guard_tree(state.guards, [*(i.source for i in state.inputs), *reads.sources.values()]),
        graph_break,
        continuation,
        state,
        lines,
        reads,
    )


def _switches_gradients(graph: fx.Graph) -> bool:
    return any(node.target is torch._C._set_grad_enabled for node in graph.nodes)


def _drop_dead_nodes(graph: fx.Graph) -> None:
    """Remove what no output needs; random and gradient-mode calls stay."""
    for node in reversed(list(graph.nodes)):
        if node.op in ("placeholder", "output") or node.users:
            continue
        if isinstance(node.meta.get("val"), torch.Tensor) and node.op != "call_module":
            name = node.target if isinstance(node.target, str) else node.target.__name__
            if "rand" not in name and "dropout" not in name and "bernoulli" not in name:
                graph.erase_node(node)


def _guard_aliasing(state: TraceState) -> None:
    """With in-place operations, the same inputs must share storage as when traced."""
    if state.inputs:
        pattern = storage_pattern(tuple(i.real for i in state.inputs))
        expected = StoragePattern(tuple(i.source for i in state.inputs), pattern)
        state.require(None, Kind.STORAGE_PATTERN, expected, "which inputs share storage")


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
    call = f"return {state.constants.name(function)}({', '.join(arguments)})"
    graph = fx.Graph()
    graph.output(())
    module = fx.GraphModule(torch.nn.Module(), graph, function.__name__)
    tree = guard_tree(state.guards, ())
    return Capture(module, (), tree, graph_break, None, state, (call,))
