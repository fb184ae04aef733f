"""Calls of torch's operators on functions, as calls of operators whose bodies are graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.control.branches import Cond
from plait_bytecode_tracer.control.capture import (
    Captured,
    RefusedError,
    capture,
    items_of,
    only_tensors_in,
    tensors_in,
)
from plait_bytecode_tracer.control.loops import Scan, WhileLoop
from plait_bytecode_tracer.control.operators import Operation
from plait_bytecode_tracer.errors import TooLongError, TraceBreakError
from plait_bytecode_tracer.failing import IS_PURE, changes_unseen, is_pure, require_undone
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.bodies import result_of
from plait_bytecode_tracer.tensors.patches import refuse_modes
from plait_bytecode_tracer.values.variables import Known, TensorVariable, Variable


def as_operator(frame: Frame, make: Callable[[], Variable]) -> Variable | TraceBreakError:
    """What `make` gives, which adds an operator to the graph; why not where it cannot, and nothing
    has happened. Raises RefusedError where torch's own operator raises."""
    state = frame.state
    direct, effects = state.is_direct, state.effects()
    state.is_direct = False
    try:
        refuse_modes(state, "a branch or a loop")
        if state.derivatives.repointed:
            raise TraceBreakError("GB0002", "a branch after the data of parameters was set")
        state.seeds.settle(state)
        return make()
    except RefusedError:
        _break_at_call(frame)
        raise
    except TooLongError:
        raise
    except TraceBreakError as error:
        if state.effects() != effects:
            raise
        return error
    finally:
        state.is_direct = direct


def as_python(
    frame: Frame,
    function: Callable[..., Any],
    args: Sequence[Variable],
    reason: TraceBreakError | None,
) -> Variable:
    """A call of what an operator means, which is traced; a break on a value says why it is no
    operator."""
    try:
        return frame.call(Known(function), list(args), {})
    except TraceBreakError as error:
        if reason is not None and error.kind.code == "GB0003":
            error.reason += f", and it is no operator of the graph: {reason.reason}"
        raise


def _break_at_call(frame: Frame) -> None:
    """Let a break be one at the program's call: torch's own function checks what it is given."""
    each: Frame | None = frame
    while each is not None and each.function.globals.get("__name__", "").startswith("torch."):
        each.is_direct = False
        each = each.parent


def cond(
    frame: Frame, asked: TensorVariable, functions: Sequence[Variable], operands: Variable
) -> Variable:
    """`torch.cond`."""
    arguments = items_of(operands)
    given = only_tensors_in(arguments)
    fakes = [each.fake for each in given]
    captured = capture(frame, functions, arguments, fakes)
    first, second = captured.results
    if first.shape() != second.shape() or not first.leaves:
        raise RefusedError("branches whose results are nested in different ways, or none")
    for one, other in zip(first.leaves, second.leaves, strict=True):
        _require_alike(one.fake, other.fake, "branches whose results differ in")
        if one.fake.stride() != other.fake.stride():
            raise RefusedError("branches whose results differ in their strides")
    kinds = ["Tensor"] * (1 + len(given)) + captured.kinds()
    operation = Cond(captured.bodies, kinds, captured.autocast, draws=captured.draws)
    return first.rebuilt(_emit(frame, operation, [asked, *given], captured))


def while_loop(frame: Frame, test: Variable, step: Variable, carried: Variable) -> Variable:
    """`while_loop`."""
    arguments = items_of(carried)
    given = only_tensors_in(arguments)
    fakes = [each.fake for each in given]
    captured = capture(frame, [test, step], arguments, fakes)
    asked, handed = captured.results
    if not isinstance(asked.result, TensorVariable):
        raise TraceBreakError("GB0002", "a loop whose condition is no tensor")
    if asked.result.fake.dim() != 0 or asked.result.fake.dtype is not torch.bool:
        raise RefusedError("a loop whose condition is no scalar tensor of a truth value")
    _require_handed_on(fakes, only_tensors_in([handed.result]))
    kinds = ["Tensor"] * len(given) + captured.kinds()
    first, second = captured.bodies
    loop = WhileLoop(first, second, kinds, captured.autocast, draws=captured.draws)
    return handed.rebuilt(_emit(frame, loop, given, captured))


def scan(
    frame: Frame,
    step: Variable,
    init: Sequence[Variable],
    xs: Sequence[Variable],
    others: Sequence[Variable],
) -> Variable:
    """`scan`: what the last step hands on, and the further results, stacked."""
    carried, rows, same = map(only_tensors_in, (init, xs, others))
    fakes = [each.fake for each in carried]
    fakes += [_row(frame.state, each.fake) for each in rows]
    fakes += [each.fake for each in same]
    captured = capture(frame, [step], [*init, *xs, *others], fakes)
    (traced,) = captured.results
    parts = items_of(traced.result)
    if len(parts) != 2:
        raise RefusedError("a scan whose function does not return two things")
    handed = only_tensors_in(parts[:1])
    _require_handed_on([each.fake for each in carried], handed)
    kinds = ["Tensor"] * len(fakes) + captured.kinds()
    operation = Scan(
        *(captured.bodies[0], kinds, captured.autocast, len(carried), len(rows)),
        draws=captured.draws,
    )
    return traced.rebuilt(_emit(frame, operation, [*carried, *rows, *same], captured))


def map_rows(
    frame: Frame, function: Variable, xs: Sequence[Variable], others: Sequence[Variable]
) -> Variable:
    """`map`, row by row."""
    rows, same = map(only_tensors_in, (xs, others))
    fakes = [_row(frame.state, each.fake) for each in rows] + [each.fake for each in same]
    captured = capture(frame, [function], [*xs, *others], fakes)
    (traced,) = captured.results
    kinds = ["Tensor"] * len(fakes) + captured.kinds()
    operation = Scan(
        captured.bodies[0], kinds, captured.autocast, 0, len(rows), draws=captured.draws
    )
    return traced.rebuilt(_emit(frame, operation, [*rows, *same], captured))


def _row(state: TraceState, table: torch.Tensor) -> torch.Tensor:
    with state.fake_mode, torch.set_grad_enabled(state.grad_enabled):
        return table.select(0, 0)


def _require_handed_on(given: Sequence[torch.Tensor], handed: Sequence[TensorVariable]) -> None:
    """Require that a step hands on what it was handed, with other values."""
    if len(given) != len(handed):
        raise RefusedError("a loop that hands on more or less than it was handed")
    for one, other in zip(given, handed, strict=True):
        _require_alike(one, other.fake, "a loop that hands on tensors of another")


def _require_alike(one: torch.Tensor, other: torch.Tensor, text: str) -> None:
    for name in ("shape", "dtype", "device"):
        if getattr(one, name) != getattr(other, name):
            raise RefusedError(f"{text} {name}")


def _emit(
    frame: Frame, operation: Operation, given: Sequence[TensorVariable], captured: Captured
) -> list[TensorVariable]:
    """A node that calls the operator, with what the bodies use from around them; its results."""
    state = frame.state
    fakes: list[Any] = [*(each.fake for each in given), *(n.meta["val"] for n in captured.free)]
    nodes = [*(each.node for each in given), *captured.free]
    operator = operation.operator
    result = state.run("call_function", operator, tuple(fakes), {})
    node: fx.Node = state.graph.call_function(operator, tuple(map(state.scope.local, nodes)))
    node.meta["val"] = result
    state.pace.note_operation()
    state.mark(node)
    inner = [each for body in operation.bodies for each in body.module.graph.nodes]
    node.meta[IS_PURE] = all(is_pure(each) and not changes_unseen(each) for each in inner)
    if state.must_be_undone:
        require_undone(node)
    found = result_of(state, node, result)
    return [found] if isinstance(found, TensorVariable) else tensors_in(found)
